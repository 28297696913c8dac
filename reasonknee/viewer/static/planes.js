// Three planes on plain canvases. Boxes are half-open voxels and are drawn at the edges of these voxels; all coordinates are voxels of the full volume.
import { $, AXES, state, remember } from './state.js'

const TYPES = { uint8: Uint8Array, int8: Int8Array, uint16: Uint16Array, int16: Int16Array, uint32: Uint32Array, int32: Int32Array, float32: Float32Array }
// Which axis runs to the right and which one down, through which one steps, and what stands on the left and at the top:
// radiological, so the patient's right is on the left.
export const PLANES = { sag: ['x', 'y', 'z', 'A', 'S'], cor: ['z', 'y', 'x', 'R', 'S'], ax: ['z', 'x', 'y', 'R', 'A'] }
const NAMES = { sag: 'Sagittal', cor: 'Coronal', ax: 'Axial' }
const OPPOSITE = { L: 'R', R: 'L', A: 'P', P: 'A', S: 'I', I: 'S' }
const number = { z: 0, y: 1, x: 2 }
const colours = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()
export const STYLES = {}
export const labelColour = n => `hsl(${n * 67 % 360} 75% 60%)`

export async function decoded(answer) {
  if (answer.status === 204) return null
  const about = JSON.parse(answer.headers.get('X-Volume'))
  const data = new TYPES[about.dtype](await answer.arrayBuffer())
  if (data.length !== about.shape[0] * about.shape[1] * about.shape[2]) throw Error('the voxels do not fit their shape')
  return { ...about, data, window: [about.percentiles['0.5'], Math.max(about.percentiles['99.5'], about.percentiles['0.5'] + 1)] }
}
// Without voxels the boxes still have a place.
export const empty = about => ({ data: null, shape: AXES.map(a => about.shape[a]), origin: [0, 0, 0], window: [0, 1], percentiles: {} })

const reversed = (axis, first) => state.about.orientation[number[axis]] === first

export function boxes() {
  if (!state.about || !state.boxes) return []
  const found = []
  if (!state.about.blind) {
    const same = (a, b) => Object.keys(b).every(k => a[k] === b[k])
    if (state.about.crop && state.about.box && !same(state.about.crop, state.about.box)) found.push({ name: 'crop', box: state.about.crop, colour: '#8b95a1', dash: [2, 4], thin: true })
    if (state.about.box) found.push({ name: 'truth', box: state.about.box, colour: STYLES.truth, dash: [] })
    state.about.models.forEach((m, i) => { if (m.box) found.push({ name: m.name, box: m.box, colour: STYLES[`model-${i % 2}`], dash: i % 2 ? [3, 6] : [8, 5] }) })
  }
  if (state.draft) found.push({ name: 'yours', box: state.draft, colour: STYLES.mine, dash: [] })
  return found
}

// Screen = o + scale * millimetres from the first edge that is shown.
export function geometry(plane, canvas) {
  const [u, v] = PLANES[plane], { shape, origin } = state.volume, spacing = state.about.spacing
  const n = a => shape[number[a]], wide = n(u) * spacing[u], high = n(v) * spacing[v]
  const scale = Math.min(canvas.width / wide, canvas.height / high) * 0.96 * state.zoom
  const [px, py] = state.pan[plane].map(p => p * scale)
  return { scale, left: (canvas.width - wide * scale) / 2 + px, top: (canvas.height - high * scale) / 2 + py, wide, high, n, spacing, first: a => origin[number[a]] }
}
const edge = (g, axis, letter, at, start) => {
  const voxels = reversed(axis, letter) ? g.first(axis) + g.n(axis) - at : at - g.first(axis)
  return start + g.scale * g.spacing[axis] * voxels
}
const voxel = (g, axis, letter, pixel, start) => {
  const t = (pixel - start) / g.scale / g.spacing[axis]
  return reversed(axis, letter) ? g.first(axis) + g.n(axis) - t : g.first(axis) + t
}
export function rectangle(plane, canvas, box) {
  const g = geometry(plane, canvas), [u, v, , left, top] = PLANES[plane]
  const xs = [0, 1].map(e => edge(g, u, left, box[u + e], g.left)).sort((a, b) => a - b)
  const ys = [0, 1].map(e => edge(g, v, top, box[v + e], g.top)).sort((a, b) => a - b)
  return { xs, ys }
}
// The (z, y, x) position under a point of the canvas, not rounded.
export function under(plane, canvas, x, y) {
  const g = geometry(plane, canvas), [u, v, w, left, top] = PLANES[plane], at = []
  at[number[u]] = voxel(g, u, left, x, g.left)
  at[number[v]] = voxel(g, v, top, y, g.top)
  at[number[w]] = state.cross[number[w]] + 0.5
  return at
}
export const inside = at => at.every((c, i) => c >= state.volume.origin[i] && c < state.volume.origin[i] + state.volume.shape[i])
export function valueAt([z, y, x], volume = state.volume) {
  if (!volume?.data || !inside([z, y, x])) return null
  const [oz, oy, ox] = volume.origin, [, ny, nx] = volume.shape
  return volume.data[x - ox + nx * (y - oy + ny * (z - oz))]
}

function walk(plane, volume) { // where in memory the plane's pixels lie
  const [nz, ny, nx] = volume.shape, [u, v, w, left, top] = PLANES[plane]
  const n = { x: nx, y: ny, z: nz }, stride = { x: 1, y: nx, z: nx * ny }
  const right = reversed(u, left) ? -stride[u] : stride[u], down = reversed(v, top) ? -stride[v] : stride[v]
  const start = (state.cross[number[w]] - volume.origin[number[w]]) * stride[w] + (right < 0 ? (n[u] - 1) * stride[u] : 0) + (down < 0 ? (n[v] - 1) * stride[v] : 0)
  return { wide: n[u], high: n[v], right, down, start }
}
function grey(plane) {
  const { data } = state.volume, { wide, high, right, down, start } = walk(plane, state.volume)
  const image = new ImageData(wide, high), out = new Uint32Array(image.data.buffer), [lo, hi] = state.window, k = 255 / (hi - lo)
  for (let j = 0, o = 0, line = start; j < high; j++, line += down) {
    for (let i = 0, p = line; i < wide; i++, p += right) {
      let g = (data[p] - lo) * k
      g = g < 0 ? 0 : g > 255 ? 255 : g | 0
      out[o++] = 0xff000000 | g * 0x10101
    }
  }
  return image
}
const TINTS = Array.from({ length: 256 }, (_, n) => { // the colour of a mask's label as 0xAABBGGRR
  if (!n) return 0
  const f = k => { const a = 0.3, h = (k + n * 67 % 360 / 30) % 12; return Math.round(255 * (0.6 - a * Math.max(-1, Math.min(h - 3, 9 - h, 1)))) }
  return (0x66 << 24 | f(4) << 16 | f(8) << 8 | f(0)) >>> 0
})
function tinted(plane) {
  const { data } = state.mask, { wide, high, right, down, start } = walk(plane, state.mask)
  const image = new ImageData(wide, high), out = new Uint32Array(image.data.buffer)
  for (let j = 0, o = 0, line = start; j < high; j++, line += down) for (let i = 0, p = line; i < wide; i++, p += right) out[o++] = TINTS[data[p] & 255]
  return image
}

const off = document.createElement('canvas')
function paint(c, image, g) {
  off.width = image.width
  off.height = image.height
  off.getContext('2d').putImageData(image, 0, 0)
  c.drawImage(off, g.left, g.top, g.wide * g.scale, g.high * g.scale)
}
export function fit(canvas) {
  const d = devicePixelRatio, [wide, high] = [Math.round(canvas.clientWidth * d), Math.round(canvas.clientHeight * d)]
  if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high }
  return [wide, high, d]
}
export function drawPlane(plane) {
  const canvas = $(`[data-plane=${plane}] canvas`), c = canvas.getContext('2d'), [wide, high, d] = fit(canvas)
  c.fillStyle = '#000'
  c.fillRect(0, 0, wide, high)
  if (!state.volume || !state.about || !wide || !high) return
  const g = geometry(plane, canvas), [u, v, w, left, top] = PLANES[plane]
  c.imageSmoothingEnabled = state.smooth
  c.imageSmoothingQuality = 'high'
  if (state.volume.data) {
    paint(c, grey(plane), g)
    if (state.masks && state.mask) { c.imageSmoothingEnabled = false; paint(c, tinted(plane), g) }
  } else {
    c.strokeStyle = '#3a4552'
    c.strokeRect(g.left, g.top, g.wide * g.scale, g.high * g.scale)
  }
  for (const { box, colour, dash, thin } of boxes()) {
    const at = state.cross[number[w]], here = at >= box[w + 0] && at < box[w + 1], { xs, ys } = rectangle(plane, canvas, box)
    c.setLineDash(dash.map(n => n * d))
    c.strokeStyle = colour
    c.globalAlpha = here ? 1 : 0.4 // a box that this slice does not cut is a shadow of itself
    c.lineWidth = here && !thin ? 2 * d : d
    c.strokeRect(xs[0], ys[0], xs[1] - xs[0], ys[1] - ys[0])
    c.globalAlpha = 1
  }
  c.setLineDash([])
  crosshair(c, edge(g, u, left, state.cross[number[u]] + 0.5, g.left), edge(g, v, top, state.cross[number[v]] + 0.5, g.top), wide, high, d)
  letters(c, plane, wide, high, d, g)
}
function crosshair(c, x, y, wide, high, d) {
  const gap = 14 * d
  c.strokeStyle = 'rgba(255,255,255,.4)'
  c.lineWidth = d
  c.beginPath()
  for (const [a, b, e, f] of [[0, y, x - gap, y], [x + gap, y, wide, y], [x, 0, x, y - gap], [x, y + gap, x, high]]) { c.moveTo(a, b); c.lineTo(e, f) }
  c.stroke()
}
function letters(c, plane, wide, high, d, g) {
  const [, , w, left, top] = PLANES[plane], say = (text, x, y, align) => {
    c.textAlign = align
    c.strokeText(text, x, y)
    c.fillText(text, x, y)
  }
  c.font = `${12 * d}px system-ui`
  c.lineWidth = 3 * d
  c.strokeStyle = 'rgba(0,0,0,.75)'
  c.fillStyle = '#dfe4ea'
  say(left, 6 * d, high / 2, 'left')
  say(OPPOSITE[left], wide - 6 * d, high / 2, 'right')
  const name = `${NAMES[plane]} ${state.cross[number[w]]} of ${state.about.shape[w]}` // as the reasoning counts: from 0, of the whole volume
  say(name, 8 * d, 15 * d, 'left')
  say(top, Math.max(wide / 2, 24 * d + c.measureText(name).width), 15 * d, 'center')
  if (plane === 'sag' && wide > 300 * d) say(`${state.about.side} knee, ${state.about.visit}`, wide - 8 * d, 15 * d, 'right')
  const mm = [5, 10, 20, 50, 100].find(n => n * g.scale > 40 * d) || 100, long = mm * g.scale
  c.fillStyle = '#dfe4ea'
  c.fillRect(wide - 12 * d - long, high - 13 * d, long, 2 * d)
  for (const x of [wide - 12 * d - long, wide - 13 * d]) c.fillRect(x, high - 16 * d, d, 8 * d)
  say(`${mm} mm`, wide - 12 * d, high - 19 * d, 'right')
  say(OPPOSITE[top], Math.min(wide / 2, wide - 28 * d - long), high - 6 * d, 'center')
}

export function clamp() {
  const { origin, shape } = state.volume
  state.cross = state.cross.map((c, i) => Math.max(origin[i], Math.min(origin[i] + shape[i] - 1, Math.floor(c))))
}
export function step(by) {
  const w = PLANES[state.active]?.[2]
  if (!w || !state.volume) return
  state.cross[number[w]] += by
  clamp()
  redraw()
}
export function centre() { // on the true box, or a model's, or the middle
  const box = state.draft || state.about.box || state.about.models?.find(m => m.box)?.box, { origin, shape } = state.volume
  state.cross = box ? AXES.map(a => Math.floor((box[a + '0'] + box[a + '1'] - 1) / 2)) : origin.map((o, i) => o + (shape[i] >> 1))
  clamp()
}

let queued = false, three = () => {}, wants3d = false
export const onDraw3d = draw => { three = draw }
export function redraw(with3d = false) {
  wants3d ||= with3d
  if (queued) return
  queued = true
  requestAnimationFrame(() => {
    queued = false
    const began = performance.now()
    for (const plane of Object.keys(PLANES)) drawPlane(plane)
    state.planesMs = performance.now() - began
    tell()
    remember()
    if (wants3d) { wants3d = false; setTimeout(three) }
  })
}
export function tell() {
  const { volume, pointer, window: win } = state
  if (!volume || !state.about) return
  const at = (pointer && inside(pointer) ? pointer : state.cross).map(Math.floor), value = valueAt(at), parts = [AXES.map((a, i) => `${a} ${at[i]}`).join('  ')]
  if (volume.affine) {
    const [z, y, x] = at.map((c, i) => c - volume.origin[i])
    parts.push(volume.affine.map((r, i) => `${'RAS'[i]} ${(r[0] * x + r[1] * y + r[2] * z + r[3]).toFixed(1)}`).join('  ') + ' mm')
  }
  if (value !== null) parts.push(`value ${Number.isInteger(value) ? value : value.toFixed(3)}`)
  if (state.masks && state.mask) { const label = valueAt(at, state.mask); parts.push(`label ${label} ${state.index.labels[label] ?? ''}`) }
  if (volume.data) parts.push(`window ${win.map(Math.round).join(' to ')}`)
  if (state.zoom !== 1) parts.push(`zoom ${state.zoom.toFixed(1)}`)
  $('#status').textContent = parts.join('   ')
}

// ---- hands
const NEAR = 7
function grip(plane, canvas, x, y) { // edges of the drawn box under the pointer
  if (!state.draft || !state.boxes) return []
  const g = geometry(plane, canvas), [u, v, , left, top] = PLANES[plane], { xs, ys } = rectangle(plane, canvas, state.draft), near = NEAR * devicePixelRatio, found = []
  if (x < xs[0] - near || x > xs[1] + near || y < ys[0] - near || y > ys[1] + near) return []
  for (const e of ['0', '1']) {
    if (Math.abs(edge(g, u, left, state.draft[u + e], g.left) - x) < near) found.push(u + e)
    if (Math.abs(edge(g, v, top, state.draft[v + e], g.top) - y) < near) found.push(v + e)
  }
  return found
}
function drag(names, at) {
  for (const name of names) {
    const axis = name[0], i = number[axis], to = Math.round(at[i]), most = state.about.shape[axis]
    if (name[1] === '0') state.draft[name] = Math.max(0, Math.min(to, state.draft[axis + '1'] - 1))
    else state.draft[name] = Math.min(most, Math.max(to, state.draft[axis + '0'] + 1))
  }
  dispatchEvent(new Event('draft'))
}
export function listen(plane, enlarge) {
  const canvas = $(`[data-plane=${plane}] canvas`)
  let last = null, held = []
  const point = e => [e.offsetX * devicePixelRatio, e.offsetY * devicePixelRatio]
  const go = e => { const at = under(plane, canvas, ...point(e)); state.cross = at.map(Math.floor); clamp(); redraw() }
  const activate = () => {
    state.active = plane
    for (const p of document.querySelectorAll('.plane')) p.classList.toggle('active', p.dataset.plane === plane)
  }
  canvas.onpointerenter = activate
  canvas.onpointerdown = e => {
    if (!state.volume) return
    activate()
    last = [e.clientX, e.clientY]
    canvas.setPointerCapture(e.pointerId)
    held = e.button === 0 ? grip(plane, canvas, ...point(e)) : []
    if (e.button === 0 && !e.shiftKey && !held.length) go(e)
  }
  canvas.onpointermove = e => {
    if (!state.volume) return
    if (!e.buttons || !last) {
      state.pointer = under(plane, canvas, ...point(e))
      canvas.style.cursor = grip(plane, canvas, ...point(e)).length ? 'move' : 'crosshair'
      tell()
      return
    }
    const dx = e.clientX - last[0], dy = e.clientY - last[1]
    last = [e.clientX, e.clientY]
    if (held.length) { drag(held, under(plane, canvas, ...point(e))); redraw(true) }
    else if (e.buttons & 2) contrast(dx, dy)
    else if (e.buttons & 4 || e.shiftKey) {
      const scale = geometry(plane, canvas).scale
      state.pan[plane][0] += dx * devicePixelRatio / scale
      state.pan[plane][1] += dy * devicePixelRatio / scale
      redraw()
    } else go(e)
  }
  canvas.onpointerup = canvas.onpointercancel = () => { last = null; held = [] }
  canvas.onpointerleave = () => { state.pointer = null; tell() }
  canvas.oncontextmenu = e => e.preventDefault()
  canvas.ondblclick = () => enlarge(plane)
  canvas.onwheel = e => {
    e.preventDefault()
    activate()
    if (e.ctrlKey) { zoom(e.deltaY < 0 ? 1.1 : 1 / 1.1) } else step(Math.sign(e.deltaY))
  }
}
export function contrast(wider, higher) { // window and level, in parts of the volume's own window
  if (!state.volume?.data) return
  const [lo, hi] = state.window, unit = (state.volume.window[1] - state.volume.window[0]) / 400
  const width = Math.max(unit, hi - lo + wider * unit), level = (lo + hi) / 2 + higher * unit
  state.window = [level - width / 2, level + width / 2]
  redraw()
}
export function turn(round, over) { // the 3D view, by degrees
  state.azimuth = (state.azimuth + round) % 360
  state.elevation = Math.max(-90, Math.min(90, state.elevation + over))
  redraw(true)
}
export function zoom(by) { // about the crosshair, so that what is looked at stays
  const old = state.zoom
  state.zoom = Math.max(0.5, Math.min(24, old * by))
  for (const plane of Object.keys(PLANES)) {
    const canvas = $(`[data-plane=${plane}] canvas`)
    if (!state.volume || !canvas.width) continue
    const [u, v, , left, top] = PLANES[plane], now = state.zoom, at = () => { const g = geometry(plane, canvas); return [edge(g, u, left, state.cross[number[u]] + 0.5, g.left), edge(g, v, top, state.cross[number[v]] + 0.5, g.top), g.scale] }
    state.zoom = old
    const [x, y] = at()
    state.zoom = now
    const [nx, ny, scale] = at()
    state.pan[plane][0] += (x - nx) / scale
    state.pan[plane][1] += (y - ny) / scale
  }
  redraw()
}
for (const name of ['truth', 'model-0', 'model-1', 'mine']) STYLES[name] = colours(name)
