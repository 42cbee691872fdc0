// The page: strokes become samples, each is learnt at once, and the checkpoint is kept in IndexedDB.

import { Model } from "./build/js/gestures.js";
import { load, remove, save } from "./build/js/storage.js";

const GESTURES = ["circle", "zigzag", "line"];
const GUESS = GESTURES.length; // the last choice
const POINTS = 32;
const BATCH = 8; // of training; a guess is one sample
const STEPS = 40; // after each stroke

const find = (id) => document.getElementById(id);
const paper = find("paper").getContext("2d");
let model;
let strokes = []; // what was drawn: { points: Float32Array, label }
let chosen = 0;
let drawing = null;

// Coordinates of a stroke at equal distances along it, in a square around it from -1 to 1.
export function resample(points) {
  const lengths = [0];
  for (let i = 1; i < points.length; i++) {
    const [dx, dy] = [0, 1].map((axis) => points[i][axis] - points[i - 1][axis]);
    lengths.push(lengths[i - 1] + Math.hypot(dx, dy));
  }
  const whole = lengths.at(-1);
  const at = (axis, part) => {
    const end = Math.max(1, lengths.findIndex((length) => length >= part * whole));
    const share = (part * whole - lengths[end - 1]) / (lengths[end] - lengths[end - 1] || 1);
    return points[end - 1][axis] + share * (points[end][axis] - points[end - 1][axis]);
  };
  const found = Float32Array.from({ length: 2 * POINTS }, (_, i) =>
    at(i % 2, Math.floor(i / 2) / (POINTS - 1)),
  );
  const [xs, ys] = [0, 1].map((axis) => found.filter((_, i) => i % 2 === axis));
  const middle = [xs, ys].map((values) => (Math.max(...values) + Math.min(...values)) / 2);
  const size = Math.max(...[xs, ys].map((values) => Math.max(...values) - Math.min(...values)), 1);
  return found.map((value, i) => (2 * (value - middle[i % 2])) / size);
}

// Take steps on samples drawn at random from all strokes.
function learn() {
  const x = new Float32Array(BATCH * 2 * POINTS);
  const labels = new BigInt64Array(BATCH);
  let loss;
  model.setBatch(BATCH);
  const begin = performance.now();
  for (let step = 0; step < STEPS; step++) {
    for (let row = 0; row < BATCH; row++) {
      const { points, label } = strokes[Math.floor(Math.random() * strokes.length)];
      x.set(points, row * 2 * POINTS);
      labels[row] = BigInt(label);
    }
    [loss] = model.trainStep([x, labels]);
    model.optimizerStep();
    model.lazyResetGrad();
  }
  const each = (performance.now() - begin) / STEPS;
  find("state").textContent =
    `${strokes.length} strokes, ${model.getStep()} steps of ${each.toFixed(2)} ms, ` +
    `loss ${loss[0].toFixed(3)}`;
}

function guess(points) {
  model.setBatch(1);
  const [scores] = model.infer([points]);
  const powers = scores.map((score) => Math.exp(score - Math.max(...scores)));
  const best = powers.indexOf(Math.max(...powers));
  const sure = powers[best] / powers.reduce((a, b) => a + b);
  find("guess").textContent = `${GESTURES[best]}, ${Math.round(100 * sure)} %`;
}

function choose(index) {
  chosen = index;
  [...find("choices").children].forEach((button, i) =>
    button.setAttribute("aria-pressed", String(i === index)),
  );
}

// --- drawing

function begin(event) {
  find("paper").setPointerCapture(event.pointerId);
  paper.clearRect(0, 0, 480, 320);
  drawing = [[event.offsetX, event.offsetY]];
}

function move(event) {
  if (drawing === null) {
    return;
  }
  const last = drawing.at(-1);
  drawing.push([event.offsetX, event.offsetY]);
  const scale = 480 / find("paper").clientWidth;
  paper.beginPath();
  paper.lineWidth = 3;
  paper.moveTo(last[0] * scale, last[1] * scale);
  paper.lineTo(event.offsetX * scale, event.offsetY * scale);
  paper.stroke();
}

async function end() {
  const points = drawing;
  drawing = null;
  if (points === null || points.length < 3) {
    return;
  }
  const sample = resample(points);
  if (chosen !== GUESS) {
    strokes.push({ points: sample, label: chosen });
    learn();
  }
  guess(sample);
  await save("last", model.checkpoint(), strokes);
}

async function start() {
  const last = await load("last");
  strokes = last?.data ?? [];
  const first = () => fetch("./build/checkpoint").then((answer) => answer.arrayBuffer());
  model = await Model.create(last?.checkpoint ?? (await first()));
  model.setLearningRate(0.003);
  [...GESTURES, "guess"].forEach((name, index) => {
    const button = document.createElement("button");
    button.textContent = name;
    button.onclick = () => choose(index);
    find("choices").append(button);
  });
  choose(0);
  find("state").textContent = `${strokes.length} strokes, ${model.getStep()} steps`;
  const canvas = find("paper");
  canvas.onpointerdown = begin;
  canvas.onpointermove = move;
  canvas.onpointerup = end;
  find("forget").onclick = async () => {
    await remove("last");
    location.reload();
  };
  document.body.dataset.ready = "yes";
}

start().catch((error) => {
  find("guess").textContent = error.message;
});
