// Starts the page: opens rows, keys, and what stands in the address.
import { $, FILTERS, column, el, get, idOf, link, numbers, questionOf, forget, recall, remember, setValue, state, toast, volumeOf } from './state.js'
import { PLANES, STYLES, boxes, centre, clamp, contrast, decoded, empty, listen, onDraw3d, redraw, rectangle, step, turn, zoom } from './planes.js'
import * as solid from './solid.js'
import * as list from './list.js'
import { card } from './card.js'
import { flag, onChange, save, startBox, undo } from './review.js'

const PRESETS = { auto: ['0.5', '99.5'], wide: ['0', '100'], marrow: ['2', '90'], fluid: ['50', '100'] }
const kept = new Map(), masks = new Map()
const voxelKey = row => state.index.kind === 'release' && state.index.note.includes('crops') ? idOf(row) : volumeOf(row)
function fetched(cache, path, row) { // the last three, so that going back costs nothing
  const key = voxelKey(row)
  if (!cache.has(key)) cache.set(key, get(`${path}/${row}`).then(decoded))
  const found = cache.get(key)
  cache.delete(key)
  cache.set(key, found)
  found.catch(() => cache.delete(key))
  while (cache.size > 3) cache.delete(cache.keys().next().value)
  return found
}

let opening = 0
async function openRow(place, at = null, win = null) {
  if (place < 0 || place >= state.shown.length) return
  state.place = place
  await openNumber(state.shown[place], at, win)
  list.reveal()
}
async function openNumber(row, at = null, win = null) {
  const turn = ++opening, began = performance.now()
  state.row = row
  state.draft = null
  list.render()
  let about, volume = null
  const voxels = fetched(kept, 'voxels', row).catch(error => { toast(`No voxels: ${error.message}`); return null })
  try { about = await (await get(`row/${row}${state.blind ? '?blind=1' : ''}`)).json() } catch (error) { toast(error.message); return }
  if (turn !== opening) return
  const before = state.about, key = state.volume?.key
  state.about = about
  card(openId)
  volume = await voxels
  if (turn !== opening) return
  volume = volume || empty(about)
  volume.key = voxelKey(row)
  state.volume = volume
  $('#preset').hidden = !volume.data
  if (win) state.window = win
  else if (!before || key !== volume.key) preset($('#preset').value)
  if (at) { state.cross = at; clamp() } else centre()
  state.mask = null
  if (state.masks) await loadMask()
  redraw(true)
  document.title = `${questionOf(row).title} · ${volumeOf(row)}`
  requestAnimationFrame(() => requestAnimationFrame(() => { state.openMs = performance.now() - began; document.body.dataset.open = about.id }))
  const next = state.shown[state.place + 1]
  if (next !== undefined && voxelKey(next) !== volume.key) setTimeout(() => { if (turn === opening) fetched(kept, 'voxels', next).catch(() => {}) }, 400)
}
async function openId(id, at = null, win = null) {
  const row = list.rowOf(id)
  if (row < 0) { toast(`There is no row ${id}.`); return }
  state.place = state.shown.indexOf(row)
  await openNumber(row, at, win)
  list.reveal()
}
async function refresh() { // after a review entry: the same row, the same place
  const row = state.row, answer = await get(`row/${row}${state.blind && !state.about.revealed ? '?blind=1' : ''}`)
  let about = await answer.json()
  if (about.blind && about.review.some(e => e.kind === 'reading')) { about = await (await get(`row/${row}`)).json(); about.revealed = true }
  if (row !== state.row) return
  state.about = about
  card(openId)
  redraw(true)
}
async function loadMask() {
  const row = state.row
  try {
    const found = await fetched(masks, 'mask', row)
    if (!found) { state.masks = false; toast('There is no mask of this volume.'); return }
    if (row === state.row) state.mask = found
  } catch (error) { toast(error.message) }
}
function preset(name) {
  const { percentiles } = state.volume, [lo, hi] = PRESETS[name] || PRESETS.auto
  if (percentiles[lo] === undefined) { state.window = [0, 1]; return }
  state.window = [percentiles[lo], Math.max(percentiles[hi], percentiles[lo] + 1)]
  $('#preset').value = PRESETS[name] ? name : 'auto'
}
function enlarge(plane) {
  state.big = state.big === plane ? '' : plane
  $('#planes').classList.toggle('one', Boolean(state.big))
  for (const p of document.querySelectorAll('.plane')) p.classList.toggle('big', p.dataset.plane === state.big)
  if (state.big && PLANES[plane]) state.active = plane
  redraw(true)
}
function reset() {
  state.zoom = 1
  for (const plane of Object.keys(state.pan)) state.pan[plane] = [0, 0]
  $('#preset').value = 'auto'
  preset('auto')
  redraw()
}
const presets = Object.keys(PRESETS)
const along = by => state.big === 'vol' ? turn(10 * by, 0) : step(by)
const drawer = name => { const on = !document.body.classList.contains(name); document.body.classList.remove('list', 'card'); document.body.classList.toggle(name, on); list.render() }
async function blind() {
  state.blind = !state.blind
  toast(state.blind ? 'Blind: answers and boxes are hidden until you have graded.' : 'Not blind.')
  await list.apply()
  if (state.row >= 0) await openNumber(state.row, state.cross)
}
async function toggleMask() {
  state.masks = !state.masks
  if (state.masks && !state.mask) await loadMask()
  redraw()
}
// key -> what it does, and what it is called on the page of keys
const KEYS = [
  [['j', 'ArrowDown'], 'next row', () => openRow(state.place + 1)],
  [['k', 'ArrowUp'], 'previous row', () => openRow(state.place - 1)],
  [['PageDown'], 'ten rows on', () => openRow(Math.min(state.place + 10, state.shown.length - 1))],
  [['PageUp'], 'ten rows back', () => openRow(Math.max(state.place - 10, 0))],
  [['Home'], 'first row', () => openRow(0)],
  [['End'], 'last row', () => openRow(state.shown.length - 1)],
  [[']', 'ArrowRight'], 'next slice of the plane under the pointer; alone, 3D turns', () => along(1)],
  [['[', 'ArrowLeft'], 'previous slice', () => along(-1)],
  [['{', '}'], 'tilt the 3D view', key => turn(0, key === '{' ? -10 : 10)],
  [['Tab'], 'the next plane gets the keys', () => { const all = Object.keys(PLANES); state.active = all[(all.indexOf(state.active) + 1) % 3]; for (const p of document.querySelectorAll('.plane')) p.classList.toggle('active', p.dataset.plane === state.active) }],
  [['c'], 'go to the middle of the box', () => { centre(); redraw() }],
  [['b'], 'boxes on or off', () => { state.boxes = !state.boxes; redraw(true) }],
  [['v'], 'mask on or off', toggleMask],
  [['w'], 'next window: auto, wide, marrow, fluid', () => { preset(presets[(presets.indexOf($('#preset').value) + 1) % presets.length]); redraw() }],
  [['<', '>'], 'window: narrower, wider', key => contrast(key === '<' ? -20 : 20, 0)],
  [[',', '.'], 'level: brighter, darker', key => contrast(0, key === ',' ? -20 : 20)],
  [['+', '='], 'zoom in', () => zoom(1.25)],
  [['-'], 'zoom out', () => zoom(0.8)],
  [['r'], 'reset window, zoom and pan', reset],
  [['p'], 'pixels or smooth', () => { state.smooth = !state.smooth; redraw() }],
  [['1'], 'sagittal alone, again for all', () => enlarge('sag')],
  [['2'], 'coronal', () => enlarge('cor')],
  [['3'], 'axial', () => enlarge('ax')],
  [['4'], '3D', () => enlarge('vol')],
  [['f'], 'flag: box misplaced', () => flag('box_misplaced')],
  [['g'], 'flag: grade doubtful', () => flag('grade_doubtful')],
  [['m'], 'flag: image bad', () => flag('image_bad')],
  [['o'], 'write a note; again to save it', () => { const field = $('#written'); if (!field) return; if (field.value.trim()) return flag('note'); if (innerWidth <= 1150) document.body.classList.add('card'); return field.focus() }],
  [['e'], 'draw a box, or drop it', startBox],
  [['a'], 'to the grades (Tab goes on, Esc leaves)', () => { if (innerWidth <= 1150) document.body.classList.add('card'); $('.review .grades select')?.focus() }],
  [['s'], 'save the correction, or the blind reading', save],
  [['u'], 'undo your last entry', undo],
  [['d'], 'export the review', () => $('#export')?.click()],
  [['n'], 'boxes as NIfTI', () => $('#boxes-nifti')?.click()],
  [['x'], 'blind: grade before you see', blind],
  [['/'], 'search', () => { if (innerWidth <= 1150) document.body.classList.add('list'); $('#f-text').focus() }],
  [['Backspace'], 'clear the filters', () => list.clear()],
  [['l'], 'list, in a small window', () => drawer('list')],
  [['i'], 'row, in a small window', () => drawer('card')],
  [['y'], 'copy a link to what you see', async () => { history.replaceState(null, '', link()); try { await navigator.clipboard.writeText(location.href); toast('The link is copied.') } catch { toast('The address of this page is the link.') } }],
  [['?'], 'this page', () => $('#help').showModal()],
]
const actions = new Map(KEYS.flatMap(([keys, , run]) => keys.map(key => [key, run])))
addEventListener('keydown', e => {
  if ($('#help').open || e.ctrlKey || e.metaKey || e.altKey) return
  if (e.target.matches('input:not([type=range]):not([type=checkbox]), textarea, select')) {
    if (e.key === 'Escape') e.target.blur()
    return
  }
  if (e.key === 'Escape') { document.body.classList.remove('list', 'card'); return }
  if (e.key === 'Tab' && (e.shiftKey || !e.target.closest('.plane') && e.target !== document.body)) return // the form keeps its order
  const run = actions.get(e.key)
  if (run && state.index) { e.preventDefault(); run(e.key) }
})
addEventListener('resize', () => redraw(true))
addEventListener('hashchange', e => fromAddress(new URL(e.newURL).hash)) // not `location`: what is being remembered may have overwritten it

async function fromAddress(hash = location.hash) {
  forget()
  const asked = new URLSearchParams(hash.slice(1))
  for (const name of FILTERS) if (name !== 'sort' || asked.has('sort') || asked.has('id')) setValue(name, asked.get(name))
  state.blind = asked.has('blind')
  recall(asked)
  const big = asked.get('plane') || ''
  if (big !== state.big && (big === '' || big === 'vol' || PLANES[big])) enlarge(big || state.big)
  await list.apply()
  const at = numbers(asked.get('at'), 3), win = numbers(asked.get('window'), 2)
  if (asked.get('id')) {
    const row = list.rowOf(asked.get('id'))
    if (row >= 0) { await openId(asked.get('id'), at, win); return }
    toast(`There is no row ${asked.get('id')}.`)
  }
  await openRow(0)
}
function legend() {
  const entry = (kind, text) => el('span', { className: kind }, el('i', { className: kind }), text)
  $('#legend').replaceChildren(entry('truth', 'truth'), ...state.index.models.map((name, i) => entry(`model-${i % 2}`, name)), entry('mine', 'yours'))
}
async function start() {
  for (const plane of Object.keys(PLANES)) listen(plane, enlarge)
  solid.start()
  onDraw3d(solid.draw)
  onChange(refresh)
  $('#preset').replaceChildren(...presets.map(name => el('option', { value: name, textContent: name })))
  $('#preset').onchange = e => { preset(e.target.value); redraw(); e.target.blur() }
  $('#show-list').onclick = () => drawer('list')
  $('#show-card').onclick = () => drawer('card')
  $('#show-help').onclick = () => $('#help').showModal()
  $('#keys').append(...KEYS.map(([keys, text]) => el('div', {}, el('dt', { textContent: keys.map(k => ({ ArrowUp: '↑', ArrowDown: '↓', ArrowLeft: '←', ArrowRight: '→' })[k] || k).join('  ') }), el('dd', { textContent: text }))))
  try { state.index = await (await get('index')).json() } catch (error) {
    document.body.dataset.failed = '1'
    $('#status').textContent = error.message
    $('#note').textContent = error.message
    return
  }
  $('#name').textContent = state.index.name
  $('#note').textContent = state.index.note
  legend()
  await list.load(openRow)
  await fromAddress()
  document.body.dataset.ready = '1'
}
window.reasonknee = { state, boxes, rectangle, openId, idOf, STYLES, column, remember } // for tests and for the curious
start()
