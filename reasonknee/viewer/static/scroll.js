// A list of any length: only what is in sight becomes elements.
import { $, el } from './state.js'

const HEIGHT = 44, TALLEST = 8e6 // browsers do not draw an element of 20 million pixels

// `item` makes the element of a place in the list; `open` is what a click on it does.
export function scroller(item, open) {
  const box = $('#rows')
  let count = 0
  const inSight = () => Math.max(1, Math.floor(box.clientHeight / HEIGHT))
  const scaled = () => count * HEIGHT > TALLEST
  function first() {
    if (!scaled()) return Math.floor(box.scrollTop / HEIGHT)
    return Math.round(box.scrollTop / Math.max(1, TALLEST - box.clientHeight) * (count - inSight()))
  }
  function render() {
    const start = Math.max(0, Math.min(first(), count - 1)), end = Math.min(count, start + inSight() + 1), items = []
    for (let place = start; place < end; place++) items.push(item(place))
    $('#window').replaceChildren(...items)
  }
  function resize(n) {
    count = n
    $('#spacer').style.height = `${Math.max(1, Math.min(count * HEIGHT, TALLEST))}px`
  }
  function reveal(place) { // in sight
    const at = first(), seen = inSight()
    if (place >= 0 && (place < at || place >= at + seen)) {
      const to = Math.max(0, place - (seen >> 1))
      box.scrollTop = scaled() ? to / Math.max(1, count - seen) * (TALLEST - box.clientHeight) : to * HEIGHT
    }
    render()
  }
  box.onscroll = render
  new ResizeObserver(render).observe(box)
  return { render, resize, reveal, element: (place, selected, title, ...kids) => el('li', { role: 'option', title, 'aria-selected': String(selected), 'aria-posinset': String(place + 1), 'aria-setsize': String(count), dataset: { place }, onclick: () => open(place) }, ...kids) }
}
