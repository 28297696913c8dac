// A small 3D view: the highest value along each ray, in WebGL 2 on half the voxels; the boxes are lines on a canvas above it, turned by the same matrix.
import { $, state } from './state.js'
import { boxes, fit, turn } from './planes.js'

const VERTEX = '#version 300 es\nvoid main(){vec2 p=vec2((gl_VertexID<<1)&2,gl_VertexID&2);gl_Position=vec4(p*2.-1.,0,1);}'
const FRAGMENT = `#version 300 es
precision highp float; precision highp sampler3D;
uniform sampler3D voxels; uniform mat3 turn; uniform vec3 size; uniform vec2 view; uniform float unit; out vec4 colour;
void main() {
  vec2 q = (gl_FragCoord.xy - view * .5) / unit;
  vec3 d = turn * vec3(0, 0, -1), p = turn * vec3(q, 2.), a = (-size - p) / d, b = (size - p) / d, n = min(a, b), f = max(a, b);
  float near = max(max(n.x, n.y), n.z), far = min(min(f.x, f.y), f.z);
  if (far <= near) { colour = vec4(0, 0, 0, 1); return; }
  float most = 0.;
  for (int i = 0; i < 128; i++) {
    float t = near + (far - near) * (float(i) + .5) / 128.;
    most = max(most, texture(voxels, (p + d * t) / size * .5 + .5).r * (1. - .4 * float(i) / 128.));
  }
  colour = vec4(vec3(most), 1);
}`
let gl = null, program = null, texture = null, loaded = null

export function start() {
  gl = new URLSearchParams(location.search).has('no-webgl') ? null : $('.gl').getContext('webgl2', { antialias: false, preserveDrawingBuffer: true })
  $('#no-gl').hidden = Boolean(gl)
  if (!gl) return
  program = gl.createProgram()
  for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(kind)
    gl.shaderSource(shader, source)
    gl.compileShader(shader)
    gl.attachShader(program, shader)
  }
  gl.linkProgram(program)
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) { gl = null; $('#no-gl').hidden = false; return }
  gl.useProgram(program)
  texture = gl.createTexture()
  const canvas = $('.gl')
  canvas.onpointermove = e => {
    if (!e.buttons) return
    turn(-e.movementX / 2, e.movementY / 2)
  }
  canvas.onpointerdown = e => canvas.setPointerCapture(e.pointerId)
}
function upload() {
  const { data, shape: [nz, ny, nx], window: [lo, hi] } = state.volume, k = 255 / (hi - lo), half = n => Math.max(1, n >> 1)
  const wide = half(nx), high = half(ny), deep = half(nz), out = new Uint8Array(wide * high * deep)
  for (let z = 0, o = 0; z < deep; z++) for (let y = 0; y < high; y++) for (let x = 0; x < wide; x++) {
    const g = (data[2 * x + nx * (2 * y + ny * 2 * z)] - lo) * k
    out[o++] = g < 0 ? 0 : g > 255 ? 255 : g
  }
  gl.bindTexture(gl.TEXTURE_3D, texture)
  gl.pixelStorei(gl.UNPACK_ALIGNMENT, 1)
  gl.texImage3D(gl.TEXTURE_3D, 0, gl.R8, wide, high, deep, 0, gl.RED, gl.UNSIGNED_BYTE, out)
  for (const [name, value] of [['MIN_FILTER', gl.LINEAR], ['MAG_FILTER', gl.LINEAR], ['WRAP_S', gl.CLAMP_TO_EDGE], ['WRAP_T', gl.CLAMP_TO_EDGE], ['WRAP_R', gl.CLAMP_TO_EDGE]]) gl.texParameteri(gl.TEXTURE_3D, gl[`TEXTURE_${name}`], value)
  loaded = state.volume
}
export function draw() {
  const canvas = $('.gl'), over = $('.over'), [wide, high, d] = fit(canvas)
  fit(over)
  if (!state.volume || !state.about || !wide || !high) return
  const { shape: [nz, ny, nx], origin: [oz, oy, ox] } = state.volume, spacing = state.about.spacing, mm = [nx * spacing.x, ny * spacing.y, nz * spacing.z], longest = Math.max(...mm)
  const size = mm.map(n => n / longest), unit = Math.min(wide, high) / 2 / 1.45
  // the voxels' axes x, y, z in the world: right is the patient's left, up is superior, towards us is anterior
  const sign = (i, to) => state.about.orientation[i] === to ? 1 : -1, a = state.azimuth * Math.PI / 180, e = state.elevation * Math.PI / 180
  const [ca, sa, ce, se] = [Math.cos(a), Math.sin(a), Math.cos(e), Math.sin(e)]
  const eye = [[ca, 0, -sa], [sa * se, ce, ca * se], [sa * ce, -se, ca * ce]]
  const world = [[0, 0, sign(0, 'L')], [0, sign(1, 'S'), 0], [sign(2, 'A'), 0, 0]]
  const turned = eye.map(r => [0, 1, 2].map(j => r[0] * world[0][j] + r[1] * world[1][j] + r[2] * world[2][j]))
  if (gl) {
    if (state.volume.data && loaded !== state.volume) upload()
    gl.viewport(0, 0, wide, high)
    if (state.volume.data) {
      const u = name => gl.getUniformLocation(program, name)
      gl.uniformMatrix3fv(u('turn'), false, [0, 1, 2].flatMap(c => [0, 1, 2].map(r => turned[c][r])))
      gl.uniform3fv(u('size'), size)
      gl.uniform2f(u('view'), wide, high)
      gl.uniform1f(u('unit'), unit)
      gl.drawArrays(gl.TRIANGLES, 0, 3)
    } else gl.clear(gl.COLOR_BUFFER_BIT)
  }
  const c = over.getContext('2d')
  c.clearRect(0, 0, wide, high)
  if (!gl) return
  const at = (x, y, z) => {
    const p = [((x - ox) / nx * 2 - 1) * size[0], ((y - oy) / ny * 2 - 1) * size[1], ((z - oz) / nz * 2 - 1) * size[2]]
    return [wide / 2 + unit * (turned[0][0] * p[0] + turned[0][1] * p[1] + turned[0][2] * p[2]), high / 2 - unit * (turned[1][0] * p[0] + turned[1][1] * p[1] + turned[1][2] * p[2])]
  }
  const wire = (b, colour, dash, width) => {
    const corners = [b.z0, b.z1].flatMap(z => [b.y0, b.y1].flatMap(y => [b.x0, b.x1].map(x => at(x, y, z))))
    c.setLineDash(dash.map(n => n * d))
    c.strokeStyle = colour
    c.lineWidth = width * d
    c.beginPath()
    for (const [i, j] of [[0, 1], [2, 3], [4, 5], [6, 7], [0, 2], [1, 3], [4, 6], [5, 7], [0, 4], [1, 5], [2, 6], [3, 7]]) { c.moveTo(...corners[i]); c.lineTo(...corners[j]) }
    c.stroke()
  }
  wire({ z0: oz, z1: oz + nz, y0: oy, y1: oy + ny, x0: ox, x1: ox + nx }, '#3a4552', [], 1)
  for (const { box, colour, dash, thin } of boxes()) if (!thin) wire(box, colour, dash, 1.5)
  c.fillStyle = '#dfe4ea'
  c.font = `${12 * d}px system-ui`
  c.fillText(state.volume.data && c.canvas.width > 240 * d ? '3D, highest values; drag to turn' : '3D', 8 * d, 15 * d)
}
