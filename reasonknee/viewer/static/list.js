// The list: all rows as columns, filtered and sorted here; only what is in sight becomes elements.
import { $, FILTERS, column, el, get, idOf, partsOf, questionOf, remember, setValue, state, toast, value, volumeOf } from './state.js'
import { scroller } from './scroll.js'

const MARKS = { right: '✓', wrong: '✗', unread: '?', 'no answer': '·' }
let scroll = null, openRow = () => {}, said = { key: '', rows: null }
const COLUMNS = { uint8: Uint8Array, int8: Int8Array, uint32: Uint32Array, float32: Float32Array }

export async function load(open) {
  openRow = open
  const columns = Object.entries(state.index.columns)
  const found = await Promise.all(columns.map(async ([name, type]) => [name, new COLUMNS[type](await (await get(`column/${name}`)).arrayBuffer())]))
  state.columns = Object.fromEntries(found)
  state.flagged = new Set(state.index.flagged)
  choices()
  scroll = scroller(item, openRow)
  $('#filters').onsubmit = e => e.preventDefault()
  $('#filters').oninput = e => { if (e.target.id !== 'f-words') apply(true) }
  $('#f-words').onchange = () => apply(true)
}

const option = (to, text) => el('option', { value: to, textContent: text })
function fill(name, all, pairs) { $(`#f-${name}`).replaceChildren(option('', all), ...pairs.map(([to, text]) => option(to, text))) }
function choices() {
  const { index } = state, asked = new Set(column('question')), questions = index.questions.filter((_, i) => asked.has(i))
  const pairs = (id, title) => [...new Map(questions.map(q => [q[id], q[title]]))].sort((a, b) => a[1].localeCompare(b[1]))
  const parts = index.volumes.map(partsOf), distinct = name => [...new Set(parts.map(p => p[name]))].sort()
  fill('split', 'all splits', [...new Set(column('split'))].map(i => [index.splits[i], index.splits[i]]))
  fill('visit', 'all visits', distinct('visit').map(v => [v, v]))
  fill('side', 'both sides', distinct('side').map(v => [v, `${v} knee`]))
  fill('category', 'all categories', pairs('category', 'category_title'))
  fill('region', 'all regions', pairs('region', 'region_title'))
  const grades = [...new Set(column('grade'))].filter(g => g >= 0).sort((a, b) => a - b)
  fill('grade', 'any grade', [['1+', 'any finding (1 or more)'], ...grades.map(g => [String(g), `highest grade ${g}`])])
  $('#f-model').replaceChildren(...index.models.map((name, i) => option(String(i), name)))
  fill('verdict', 'right or wrong', index.verdicts.map(v => [v, v]))
  fill('status', 'any status', index.statuses.map(v => [v, v]))
  $('#of-model').hidden = !index.models.length
  $('#of-model').style.display = index.models.length ? '' : 'none'
  if (index.models.length) $('#f-sort').value = 'worst'
}

async function speaking(model, words) { // rows in whose answer the words stand: texts are not here, so the server looks
  const key = `${model} ${words}`
  if (said.key !== key) {
    $('#count').textContent = 'reading the answers …'
    said = { key, rows: new Set(new Uint32Array(await (await get(`search?model=${model}&words=${encodeURIComponent(words)}`)).arrayBuffer())) }
  }
  return said.rows
}

export async function apply(openFirst = false) {
  const f = Object.fromEntries(FILTERS.map(name => [name, value(name)])), { index } = state, n = index.rows, model = f.model || '0'
  $('#o-iou').value = f.iou || 'any'
  let spoken = null
  if (f.words && index.models.length) try { spoken = await speaking(model, f.words) } catch (error) { toast(error.message) }
  const words = f.text.toLowerCase().split(/\s+/).filter(Boolean)
  const questions = index.questions.map(q => (!f.category || q.category === f.category) && (!f.region || q.region === f.region))
  const heard = words.map(w => index.questions.map(q => `${q.id} ${q.title}`.toLowerCase().includes(w)))
  const named = words.map(w => index.volumes.map(v => v.includes(w)))
  const ids = new Set(words.filter(w => w.includes('-') && !named[words.indexOf(w)].some(Boolean))) // a whole id, or its end
  const volumes = index.volumes.map(v => { const p = partsOf(v); return (!f.side || p.side === f.side) && (!f.visit || p.visit === f.visit) })
  const [question, volume, split, grade] = ['question', 'volume', 'split', 'grade'].map(column), [verdict, status, iou, badness] = ['verdict', 'status', 'iou', 'badness'].map(name => column(`${name}.${model}`))
  const wanted = { split: f.split ? index.splits.indexOf(f.split) : -1, verdict: f.verdict && !state.blind ? index.verdicts.indexOf(f.verdict) : -1, status: f.status ? index.statuses.indexOf(f.status) : -1 }
  const least = f.grade === '1+' ? 1 : -9, exact = f.grade && f.grade !== '1+' ? +f.grade : null, most = f.iou ? +f.iou : null
  const kept = new Uint32Array(n)
  let count = 0
  rows: for (let r = 0; r < n; r++) {
    if (!questions[question[r]] || !volumes[volume[r]]) continue
    if (wanted.split >= 0 && split[r] !== wanted.split) continue
    if (!state.blind && (grade[r] < least || (exact !== null && grade[r] !== exact))) continue
    if (verdict) {
      if (wanted.verdict >= 0 && verdict[r] !== wanted.verdict) continue
      if (wanted.status >= 0 && status[r] !== wanted.status) continue
      if (most !== null && !(iou[r] <= most)) continue
      if (spoken && !spoken.has(r)) continue
    }
    if (f.flagged && !state.flagged.has(r)) continue
    for (let w = 0; w < words.length; w++) if (!heard[w][question[r]] && !named[w][volume[r]] && !(ids.has(words[w]) && idOf(r).includes(words[w]))) continue rows
    kept[count++] = r
  }
  const shown = kept.slice(0, count)
  if (badness && !state.blind && f.sort === 'worst') shown.sort((a, b) => badness[b] - badness[a] || a - b)
  if (iou && !state.blind && f.sort === 'iou') shown.sort((a, b) => (Number.isNaN(iou[a]) ? 2 : iou[a]) - (Number.isNaN(iou[b]) ? 2 : iou[b]) || a - b)
  state.shown = shown
  state.place = shown.indexOf(state.row)
  $('#count').textContent = count ? `${count.toLocaleString('en')} of ${n.toLocaleString('en')}` : `none of ${n.toLocaleString('en')}: Backspace clears the filters`
  scroll.resize(count)
  if (openFirst && state.place < 0 && count) await openRow(0)
  reveal()
  remember()
}

export const reveal = () => scroll.reveal(state.place) // the open row in sight
export const render = () => { if (scroll) scroll.render() }
function item(place) {
  const row = state.shown[place], model = value('model') || '0', verdict = column(`verdict.${model}`), iou = column(`iou.${model}`)
  const mark = verdict && !state.blind ? state.index.verdicts[verdict[row]] : '', overlap = iou && !state.blind && !Number.isNaN(iou[row]) ? `IoU ${iou[row].toFixed(2)}` : ''
  return scroll.element(place, place === state.place, `${mark ? `${mark}: ` : ''}${questionOf(row).title}`,
    el('b', { textContent: MARKS[mark] || '' }),
    el('span', {}, questionOf(row).region_title, el('small', { textContent: `${volumeOf(row)} · ${questionOf(row).lesion_title}` })),
    el('small', { textContent: `${state.flagged.has(row) ? '⚑ ' : ''}${overlap}` }))
}
export function rowOf(id) { // by its id, without a table of half a million ids
  const cut = id.lastIndexOf('-'), v = state.index.volumes.indexOf(id.slice(0, cut)), q = state.index.questions.findIndex(x => x.id === id.slice(cut + 1))
  const volume = column('volume'), question = column('question')
  let low = volume.indexOf(v)
  if (v < 0 || q < 0 || low < 0) return -1
  for (; low < volume.length && volume[low] === v; low++) if (question[low] === q) return low
  return -1
}
export function clear() {
  for (const name of FILTERS) if (name !== 'model') setValue(name, '')
  return apply()
}
