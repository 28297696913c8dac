// What is shown, in one place; the address after # says it, so that every view is a link.
export const $ = s => document.querySelector(s)
export const AXES = ['z', 'y', 'x']
export const FILTERS = ['text', 'split', 'visit', 'category', 'region', 'side', 'grade', 'model', 'sort', 'verdict', 'status', 'iou', 'words', 'flagged']
export const state = {
  index: null, columns: {}, shown: new Uint32Array(0), place: -1, row: -1, about: null,
  volume: null, mask: null, masks: false, cross: [0, 0, 0], window: [0, 1], zoom: 1,
  pan: { sag: [0, 0], cor: [0, 0], ax: [0, 0] }, active: 'sag', big: '', boxes: true, smooth: true, blind: false,
  draft: null, azimuth: 25, elevation: 15, flagged: new Set(), pointer: null,
}

// Text from the release or from a model is only ever set as text.
export function el(tag, props = {}, ...kids) {
  const made = document.createElement(tag)
  for (const [name, value] of Object.entries(props)) {
    if (name === 'dataset') Object.assign(made.dataset, value)
    else if (name.startsWith('aria-') || name === 'role' || name === 'for') made.setAttribute(name, value)
    else made[name] = value
  }
  made.append(...kids.filter(kid => kid !== null && kid !== undefined))
  return made
}

let hiding
export function toast(text) {
  $('#toast').textContent = text
  $('#toast').hidden = false
  clearTimeout(hiding)
  hiding = setTimeout(() => { $('#toast').hidden = true }, 4000)
}

async function checked(answer) {
  if (answer.ok) return answer
  const text = await answer.text()
  let told = text.trim()
  try { told = JSON.parse(text).error || told } catch { /* plain text */ }
  throw Error(told || `the server answers ${answer.status}`)
}
export const get = path => fetch(`/api/${path}`).then(checked)
export const post = (path, said) => fetch(`/api/${path}`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(said) }).then(checked).then(a => a.json())

// ---- the address
const TURN = [25, 15], turned = () => [Math.round(state.azimuth), Math.round(state.elevation)]
const SWITCHES = { boxes: ['boxes', true], smooth: ['smooth', true], mask: ['masks', false] } // name in the address -> field, and how it usually stands
export const value = name => name === 'flagged' ? ($('#f-flagged').checked ? '1' : '') : name === 'iou' ? ($('#f-iou').value === '1' ? '' : $('#f-iou').value) : $(`#f-${name}`).value
export function setValue(name, to) {
  const field = $(`#f-${name}`)
  if (name === 'flagged') field.checked = to === '1'
  else field.value = name === 'iou' ? to || '1' : to || ''
  if (field.tagName === 'SELECT' && field.selectedIndex < 0) field.selectedIndex = 0
}
export function link() {
  const parts = new URLSearchParams()
  if (state.about) parts.set('id', state.about.id)
  for (const name of FILTERS) { const v = value(name); if (v && !(name === 'model' && v === '0')) parts.set(name, v) }
  if (state.volume) parts.set('at', state.cross.join(','))
  if (state.volume?.window && state.window.some((v, i) => v !== state.volume.window[i])) parts.set('window', state.window.map(v => Math.round(v * 10) / 10).join(','))
  if (state.big) parts.set('plane', state.big)
  if (state.zoom !== 1) parts.set('zoom', state.zoom.toFixed(2))
  const pans = Object.values(state.pan).flat()
  if (pans.some(n => Math.abs(n) >= 0.05)) parts.set('pan', pans.map(n => n.toFixed(1)).join(','))
  if (TURN.some((n, i) => turned()[i] !== n)) parts.set('turn', turned().join(','))
  for (const [name, [field, usual]] of Object.entries(SWITCHES)) if (state[field] !== usual) parts.set(name, usual ? '0' : '1')
  if (state.blind) parts.set('blind', '1')
  return '#' + parts
}
let saving
export function remember() {
  clearTimeout(saving)
  saving = setTimeout(() => history.replaceState(null, '', link()), 120)
}
export const forget = () => clearTimeout(saving)
export function recall(asked) { // how the planes stood: zoom, pan, turn of the 3D view, and what is switched on
  const zoom = Number(asked.get('zoom')) || 1, pans = numbers(asked.get('pan'), 6) || [0, 0, 0, 0, 0, 0]
  state.zoom = Math.max(0.5, Math.min(24, zoom))
  Object.keys(state.pan).forEach((plane, i) => { state.pan[plane] = pans.slice(2 * i, 2 * i + 2) })
  const [azimuth, elevation] = numbers(asked.get('turn'), 2) || TURN
  Object.assign(state, { azimuth, elevation: Math.max(-90, Math.min(90, elevation)) })
  for (const [name, [field, usual]] of Object.entries(SWITCHES)) state[field] = asked.has(name) ? asked.get(name) === '1' : usual
}
export const numbers = (text, n) => { const found = (text || '').split(',').map(Number); return found.length === n && found.every(Number.isFinite) ? found : null }

// ---- facts of a row, from the columns alone
export const column = name => state.columns[name]
export const questionOf = row => state.index.questions[column('question')[row]]
export const volumeOf = row => state.index.volumes[column('volume')[row]]
export const idOf = row => `${volumeOf(row)}-${questionOf(row).id}`
export const partsOf = volume => { const parts = volume.split('-'); return { patient: parts[0], visit: parts[1], side: parts[2] } }
