// Review: flags, corrections and blind readings. Each is a line in a file outside the release, and can be taken back.
import { $, AXES, el, post, questionOf, state, toast } from './state.js'
import { redraw } from './planes.js'
import { render } from './list.js'

let note = null, grades = {}, again = () => {}
let unsaved = { id: '', note: '', grades: {} } // the panel is made anew after every entry; what is written and not yet saved stays
const kept = () => { if (unsaved.id !== state.about.id) unsaved = { id: state.about.id, note: '', grades: {} }; return unsaved }
export const onChange = refresh => { again = refresh }

async function send(said, done) {
  if (!state.about) return null
  const mine = kept(), words = note?.value || ''
  try {
    const entry = await post('review', { id: state.about.id, ...said, ...(words.trim() ? { note: words.trim() } : {}) })
    if (mine.note === words) mine.note = ''
    if (said.kind !== 'flag') mine.grades = {}
    state.flagged.add(state.row)
    if (said.box) state.draft = null
    toast(done)
    await again()
    render()
    return entry
  } catch (error) { toast(`Not saved: ${error.message}`); return null }
}
export const flag = name => {
  if (name === 'note' && !note?.value.trim()) { note?.focus(); toast('Write the note first.'); return null }
  return send({ kind: 'flag', flag: name }, `Flagged: ${state.index.flags[name]}.`)
}
export async function undo() {
  try {
    const { undone } = await post('undo', {})
    if (undone && undone.id === state.about?.id && !state.about.review.filter(e => e.entry !== undone.entry).length) state.flagged.delete(state.row)
    toast(undone ? `Taken back: ${undone.kind} of ${undone.id}.` : 'There is nothing of yours to take back.')
    await again()
    render()
  } catch (error) { toast(error.message) }
}
export function startBox() { // from the true box, a model's, or one about the crosshair
  if (!state.about) return
  if (state.draft) { state.draft = null; again(); redraw(true); return }
  const { about, cross } = state, from = about.box || about.models?.find(m => m.box)?.box
  state.draft = from ? { ...from } : Object.fromEntries(AXES.flatMap((a, i) => { const n = about.shape[a], half = Math.max(1, n >> 3); return [[a + '0', Math.max(0, cross[i] - half)], [a + '1', Math.min(n, cross[i] + half)]] }))
  again()
  redraw(true)
}
function chosen() {
  const given = {}
  for (const [id, select] of Object.entries(grades)) if (select.value !== '') given[id] = Number(select.value)
  return given
}
export function save() {
  const question = questionOf(state.row), given = chosen(), box = state.draft ? { ...state.draft } : undefined
  if (state.about.blind) {
    if (Object.keys(given).length < question.attributes.length) { toast('Grade every attribute first.'); return null }
    return send({ kind: 'reading', grades: given, box }, 'Saved. Here is the answer.')
  }
  const changed = Object.fromEntries(Object.entries(given).filter(([id, grade]) => grade !== state.about.grades[id]))
  if (!Object.keys(changed).length && !box) { toast('Choose another grade, or draw a box (e).'); return null }
  return send({ kind: 'correction', ...(Object.keys(changed).length ? { grades: changed } : {}), box }, 'The correction is saved.')
}
function gradeChoices() {
  grades = {}
  return questionOf(state.row).attributes.flatMap(a => {
    const now = state.about.blind ? undefined : state.about.grades[a.id]
    grades[a.id] = el('select', { id: `g-${a.id}` }, el('option', { value: '', textContent: state.about.blind ? 'grade …' : `stays ${now ?? 'unknown'}` }), ...a.meanings.map((m, g) => el('option', { value: String(g), textContent: `${g}: ${m}` })))
    grades[a.id].onchange = e => { kept().grades[a.id] = e.target.value }
    grades[a.id].value = kept().grades[a.id] ?? ''
    return [el('label', { for: `g-${a.id}`, textContent: a.title }), grades[a.id]]
  })
}
function boxFields() {
  if (!state.draft) return null
  return el('div', { className: 'box' }, ...AXES.flatMap(a => ['0', '1'].map(e => el('label', {}, a + e, el('input', {
    type: 'number', id: `d-${a}${e}`, value: state.draft[a + e], min: e === '0' ? 0 : 1, max: state.about.shape[a], oninput: i => { if (Number.isInteger(+i.target.value) && i.target.value !== '') { state.draft[a + e] = +i.target.value; redraw(true) } },
  })))))
}
addEventListener('draft', () => { for (const [name, v] of Object.entries(state.draft || {})) { const field = $(`#d-${name}`); if (field) field.value = v } })
function told(e) {
  const what = e.kind === 'flag' ? state.index.flags[e.flag] : e.kind === 'reading' ? `${e.blind ? 'blind ' : ''}reading` : 'correction'
  const parts = [e.grades && Object.entries(e.grades).map(([a, g]) => `${a} ${g}`).join(', '), e.box && `box z ${e.box.z0}–${e.box.z1}, y ${e.box.y0}–${e.box.y1}, x ${e.box.x0}–${e.box.x1}`, e.note].filter(Boolean)
  return `${what}${parts.length ? `: ${parts.join('; ')}` : ''} (${e.reader}, ${e.at.slice(0, 16).replace('T', ' ')})`
}
export function reviewPanel() {
  const { about, index } = state, button = (text, title, onclick, id = '') => el('button', { type: 'button', textContent: text, title, onclick, id })
  note = el('textarea', { rows: 2, placeholder: 'Note', id: 'written', maxLength: 2000, 'aria-label': 'Note', value: kept().note, oninput: e => { kept().note = e.target.value } })
  const flags = Object.entries(index.flags).map(([name, title], i) => button(`${title}  (${'fgmo'[i]})`, 'flag this row', () => flag(name), `flag-${name}`))
  return el('div', { className: 'review' }, el('h2', { textContent: about.blind ? 'Your reading' : 'Review' }),
    ...(about.blind ? [] : [el('div', { className: 'flags' }, ...flags)]),
    el('div', { className: 'grades' }, ...gradeChoices()), note, boxFields(),
    el('div', { className: 'flags' }, button(state.draft ? 'Drop your box  (e)' : 'Draw a box  (e)', 'draw a box', startBox, 'draw'), button(about.blind ? 'Save the reading  (s)' : 'Save the correction  (s)', 'save', save, 'save')),
    ...about.review.map(e => el('p', { className: 'entry', textContent: told(e) })),
    el('p', { className: 'links' }, el('a', { href: '/api/review.jsonl', download: 'review.jsonl', id: 'export', textContent: 'export the review' }), el('a', { href: '/api/predictions.jsonl', download: 'predictions.jsonl', textContent: 'blind readings as predictions' }),
      about.blind ? null : el('a', { href: `/api/boxes/${state.row}`, download: '', id: 'boxes-nifti', textContent: 'boxes as NIfTI' }), button('undo  (u)', 'take back your last entry', undo, 'undo')),
    el('p', { className: 'entry', textContent: `Kept in ${index.review}, as ${index.reader}.` }))
}
