// The row in words: the question, the grades with their meaning, what each model said and what was read from it.
import { $, AXES, column, el, partsOf, questionOf, state, volumeOf } from './state.js'
import { reviewPanel } from './review.js'

const MARK = right => right ? '✓' : '✗'
const part = (title, open, ...kids) => el('details', { open }, el('summary', { textContent: title }), ...kids)
const pre = text => el('pre', { textContent: text })
const plain = name => name.replaceAll('_', ' ')
const percent = n => n === null || n === undefined ? '' : n.toFixed(2)

function visits(openId) { // the same question at the other visits of the knee, and the other knee
  const here = volumeOf(state.row), mine = partsOf(here), q = questionOf(state.row).id, others = []
  for (const volume of state.index.volumes) {
    const p = partsOf(volume)
    if (p.patient === mine.patient) others.push([volume, p])
  }
  if (others.length < 2) return null
  others.sort((a, b) => Number(a[1].side !== mine.side) - Number(b[1].side !== mine.side) || parseInt(a[1].visit) - parseInt(b[1].visit))
  return el('p', { className: 'visits' }, 'Visits:', ...others.map(([volume, p]) => el('button', {
    type: 'button', textContent: p.side === mine.side ? p.visit : `${p.side} ${p.visit}`, 'aria-current': String(volume === here), onclick: () => openId(`${volume}-${q}`),
  })))
}
function gradeTable(question, about) {
  const meaning = (attribute, grade) => el('small', { textContent: grade === null || grade === undefined ? '' : attribute.meanings[grade] ?? 'not a legal grade' })
  const rows = question.attributes.map(attribute => el('tr', {},
    el('td', { textContent: attribute.title }),
    el('td', {}, el('b', { textContent: about.grades[attribute.id] ?? 'unknown' }), meaning(attribute, about.grades[attribute.id])),
    ...about.models.map(m => {
      const grade = m.grades?.[attribute.id], right = m.right?.[attribute.id], known = about.grades[attribute.id] !== undefined
      return el('td', { title: !known ? '' : right ? 'right' : 'wrong' }, el('span', { className: 'mark', textContent: known ? `${MARK(right)} ` : '' }), el('b', { textContent: grade ?? 'not given' }), meaning(attribute, grade))
    })))
  const place = box => box ? el('small', { title: 'voxels of the full volume; the end is not included', textContent: AXES.map(a => `${a}\u00a0${box[a + '0']}:${box[a + '1']}`).join(' ') }) : null
  const boxes = [el('tr', {}, el('td', { textContent: 'box' }), el('td', {}, about.box ? 'yes' : 'none', place(about.box)),
    ...about.models.map(m => el('td', {}, m.iou !== null && m.iou !== undefined ? el('b', { textContent: `IoU ${percent(m.iou)}` }) : m.box ? 'given' : 'not given', m.centre_mm !== null && m.centre_mm !== undefined ? el('small', { textContent: `centre ${m.centre_mm.toFixed(0)} mm off` }) : null, place(m.box))))]
  const head = el('tr', {}, el('th'), el('th', { className: 'truth', textContent: 'truth' }), ...about.models.map((m, i) => el('th', { className: `model-${i % 2}`, textContent: m.name })))
  return el('table', {}, head, ...rows, ...boxes)
}
function reasoning(about) {
  const found = []
  for (const [name, title] of [['published_reasoning', 'Reasoning as published'], ['reasoning', 'Reasoning of the dataset']]) {
    const given = about[name]
    if (!given || !given.length) continue
    found.push(part(about.reasoning_source && name === 'reasoning' ? `Reasoning (${about.reasoning_source})` : title, true,
      Array.isArray(given) ? el('ol', { className: 'steps' }, ...given.map(step => el('li', { textContent: step }))) : pre(String(given))))
  }
  return found
}
function readings(about) { // how other readers graded the same knee
  const others = about.second_readings || []
  if (!others.length) return []
  return [part('Other readings', false, el('ul', { className: 'problems' }, ...others.map(r => el('li', { textContent: `${r.attribute.replaceAll('_', ' ')} ${r.grade}, by project ${r.project}` }))))]
}
function words(m, i, alone) {
  const more = m.more ? `\n… ${m.more.toLocaleString('en')} characters more` : ''
  return part(alone ? "The model's words" : `The words of ${m.name}`, true,
    m.status === 'missing' ? el('p', { className: 'problems', textContent: 'No answer to this question is in the file.' }) : pre(m.words ? m.words + more : '(no text: the answer came ready)'),
    m.problems?.length ? el('ul', { className: 'problems' }, ...m.problems.map(p => el('li', { textContent: p }))) : null)
}
// As it was asked: in the wording of the run's setting where the answers say which, else in those that there are.
function questions(about, open) {
  const wordings = Object.keys(about.question || {}), settings = [...new Set((about.models || []).map(m => m.setting).filter(Boolean))]
  const wording = setting => wordings.includes(setting) ? setting : 'region'
  if (settings.length) return settings.map(s => part(`Question as asked (${plain(s)})`, open, pre(about.question[wording(s)])))
  if (about.blind) return [part('Question', open, pre(about.question?.instruction || ''))]
  return [part('Question as asked', open, ...wordings.flatMap(w => [el('p', { className: 'wording', textContent: plain(w) }), pre(about.question[w])]))]
}
let shown = ''
export function card(openId) {
  const { about } = state, focused = about.id === shown && document.activeElement?.closest('#card')?.id && document.activeElement.id, question = questionOf(state.row)
  const split = state.index.splits[column('split')[state.row]]
  const top = [el('h1', { textContent: question.title }), el('p', { className: 'id', textContent: about.id }), visits(openId)]
  const facts = el('p', { className: 'visits', textContent: `${question.category_title} · ${split} · ${about.side} knee, ${about.visit} · ${about.shape.z} × ${about.shape.y} × ${about.shape.x} voxels, ${about.orientation}` })
  if (about.blind) {
    $('#card').replaceChildren(...top.filter(Boolean), facts, el('p', { textContent: 'Blind: grade first, then you see the answer.' }), ...questions(about, true), reviewPanel(openId))
  } else {
    $('#card').replaceChildren(...top.filter(Boolean), facts, gradeTable(question, about),
      ...about.models.map((m, i) => words(m, i, about.models.length === 1)), ...reasoning(about), ...readings(about), ...questions(about, false), reviewPanel(openId))
  }
  shown = about.id
  if (focused) document.getElementById(focused)?.focus() // who writes goes on writing
}
