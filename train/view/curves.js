"use strict";
// Curves as SVG: training and held-out lines of all runs in one chart for each metric.

const WIDTH = 480, HEIGHT = 260, LEFT = 58, RIGHT = 10, TOP = 10, BOTTOM = 36;
const DASHES = { training: "", "held out": "7 4", unigram: "2 4" };

const svgElement = (name, attributes, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

// Round numbers over a range: 0.13 to 0.92 -> 0.2, 0.4, 0.6, 0.8
const ticks = (low, high, number) => {
  const rough = (high - low) / number || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((by) => by * power).find((size) => size >= rough);
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + 1e-9 * step; i++) found.push(i * step);
  return found;
};

const shortNumber = (value) => {
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 0.0001) return value.toExponential(1).replace("e-", "e−");
  return String(Number(value.toPrecision(4)));
};
const shown = (chart, value) =>
  chart.is_percent ? `${Number((100 * value).toPrecision(3))}%` : shortNumber(value);

// Exponential moving average without the bias of its start (Kingma & Ba 2015, section 3).
const smooth = (values, weight) => {
  let sum = 0, norm = 0;
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return sum / norm;
  });
};

// The lines of a chart: [{label, run, kind, steps, raw, values}].
const linesOf = (chart, data, weight) => {
  const lines = [];
  data.runs.forEach((run, number) => {
    for (const [index, [kind, name]] of chart.lines.entries()) {
      const found = run.series[name];
      if (!found) continue;
      const [steps, raw] = found;
      const values = kind === "training" && chart.is_noisy ? smooth(raw, weight) : raw;
      const label = data.runs.length > 1 ? `${run.name}, ${kind}` : kind;
      const colour = data.runs.length > 1 ? number : index;
      lines.push({ label, kind, steps, raw, values, colour: `var(--series-${colour + 1})` });
    }
  });
  return lines;
};

const range = (numbers) => [Math.min(...numbers), Math.max(...numbers)];

const scalesOf = (lines, fromZero) => {
  const [, lastStep] = range(lines.map((line) => line.steps[line.steps.length - 1]));
  let [low, high] = range(lines.map((line) => range(line.values)).flat());
  if (fromZero) low = Math.min(low, 0);
  const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  [low, high] = [fromZero && low === 0 ? 0 : low - room, high + room];
  const last = Math.max(lastStep, 1);
  return {
    low, high, last,
    x: (step) => LEFT + (step / last) * (WIDTH - LEFT - RIGHT),
    y: (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM),
  };
};

const pathOf = (steps, values, { x, y }) =>
  steps.map((step, i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(values[i]).toFixed(1)}`).join("");

const drawAxes = (svg, chart, scales) => {
  const text = { fill: "var(--ink)", "font-size": 11 };
  for (const value of ticks(scales.low, scales.high, 5)) {
    const y = scales.y(value);
    svg.append(svgElement("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, stroke: "var(--faint)" }));
    svg.append(svgElement("text", { ...text, x: LEFT - 6, y: y + 4, "text-anchor": "end" }, shown(chart, value)));
  }
  for (const step of ticks(0, scales.last, 5)) {
    if (step !== Math.round(step)) continue;
    const x = scales.x(step);
    svg.append(svgElement("text", { ...text, x, y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, shortNumber(step)));
  }
  svg.append(svgElement("text", { ...text, x: (WIDTH + LEFT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, "step"));
};

const drawWarnings = (svg, data, scales) => {
  data.runs.forEach((run, number) => {
    for (const warning of run.warnings) {
      const x = scales.x(warning.step);
      const line = svgElement("line", {
        x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM, stroke: `var(--series-${number + 1})`, "stroke-dasharray": "1 3",
      });
      const sign = svgElement("text", { x, y: TOP + 10, fill: "var(--ink)", "font-size": 13, "text-anchor": "middle" }, "⚠");
      const title = svgElement("title", {}, `step ${warning.step}: ${warning.words}`);
      svg.append(svgElement("g", { class: "warning" }, title, line, sign));
    }
  });
};

const drawLines = (svg, lines, scales) => {
  for (const line of lines) {
    const look = { fill: "none", stroke: line.colour, "stroke-dasharray": DASHES[line.kind] };
    if (line.values.some((value, i) => value !== line.raw[i])) {
      const clipped = line.raw.map((value) => Math.min(Math.max(value, scales.low), scales.high));
      svg.append(svgElement("path", { ...look, d: pathOf(line.steps, clipped, scales), "stroke-width": 1, opacity: 0.25 }));
    }
    svg.append(svgElement("path", { ...look, d: pathOf(line.steps, line.values, scales), "stroke-width": 2 }));
    if (line.kind === "held out" || line.steps.length === 1) {
      line.steps.forEach((step, i) => svg.append(svgElement("circle", {
        cx: scales.x(step), cy: scales.y(line.values[i]), r: 2.5, fill: line.colour,
      })));
    }
  }
};

const legendOf = (lines) => {
  const samples = lines.map((line) => {
    const stroke = svgElement("line", {
      x1: 0, x2: 28, y1: 4, y2: 4, stroke: line.colour, "stroke-width": 2, "stroke-dasharray": DASHES[line.kind],
    });
    const sample = svgElement("svg", { viewBox: "0 0 28 8", class: "sample", "aria-hidden": "true" }, stroke);
    return element("span", {}, sample, ` ${line.label}`);
  });
  return element("div", { class: "legend" }, ...samples);
};

// The number of a line's points up to a step.
const pointsUpTo = (line, step) => {
  const after = line.steps.findIndex((at) => at > step);
  return after < 0 ? line.steps.length : after;
};

const nearest = (line, step) => {
  const after = Math.min(pointsUpTo(line, step), line.steps.length - 1), before = Math.max(after - 1, 0);
  return step - line.steps[before] < line.steps[after] - step ? before : after;
};

// A line at a step: its last value up to there, and the step of that where it is another one.
const readingOf = (chart, line, step) => {
  const last = pointsUpTo(line, step) - 1;
  if (last < 0) return `${line.label} –`;
  const measured = line.steps[last];
  const at = measured === step ? "" : ` (step ${shortNumber(Math.round(measured))})`;
  return `${line.label} ${shown(chart, line.values[last])}${at}`;
};

// A cursor for mouse, finger and arrow keys; what it shows is also read aloud.
const addCursor = (figure, svg, chart, lines, scales, cursors) => {
  const rule = svgElement("line", { y1: TOP, y2: HEIGHT - BOTTOM, stroke: "var(--ink)", visibility: "hidden" });
  svg.append(rule);
  const output = element("p", { class: "reading", role: "status" });
  figure.append(output);
  const show = (step) => {
    cursors[chart.name] = step;
    rule.setAttribute("x1", scales.x(step));
    rule.setAttribute("x2", scales.x(step));
    rule.setAttribute("visibility", "visible");
    const parts = lines.map((line) => readingOf(chart, line, step));
    output.textContent = `step ${shortNumber(Math.round(step))}: ${parts.join(", ")}`;
  };
  const hide = () => {
    delete cursors[chart.name];
    rule.setAttribute("visibility", "hidden");
    output.textContent = "";
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const step = ((x - LEFT) / (WIDTH - LEFT - RIGHT)) * scales.last;
    show(lines[0].steps[nearest(lines[0], step)]);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 };
    if (event.key === "Escape") return hide();
    if (!(event.key in moves)) return undefined;
    event.preventDefault();
    const { steps } = lines[0];
    const now = cursors[chart.name] === undefined ? steps.length - 1 : nearest(lines[0], cursors[chart.name]);
    return show(steps[Math.min(Math.max(now + moves[event.key], 0), steps.length - 1)]);
  });
  if (cursors[chart.name] !== undefined) show(cursors[chart.name]);
};

const drawChart = (chart, data, weight, fromZero, cursors) => {
  const lines = linesOf(chart, data, weight);
  if (!lines.length) return null;
  const figure = element("figure", { "data-chart": chart.name });
  const last = lines.map((line) => `${line.label} ${shown(chart, line.values[line.values.length - 1])}`);
  const svg = svgElement("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: 0, role: "img",
    "aria-label": `${chart.label} over steps; the newest values: ${last.join(", ")}. Arrow keys move a cursor.`,
  });
  const scales = scalesOf(lines, fromZero);
  drawAxes(svg, chart, scales);
  drawLines(svg, lines, scales);
  drawWarnings(svg, data, scales);
  figure.append(element("figcaption", {}, chart.label), legendOf(lines), svg);
  if (chart.note) figure.append(element("p", { class: "note" }, chart.note));
  addCursor(figure, svg, chart, lines, scales, cursors);
  return figure;
};

const startCurves = (root) => {
  let data = valuesOf(root);
  const find = (name) => root.querySelector(`[data-${name}]`);
  const cursors = {};
  const draw = () => {
    const focused = document.activeElement?.closest("[data-chart]")?.dataset.chart;
    const weight = Number(find("smoothing").value);
    const fromZero = find("from-zero").checked;
    const figures = data.charts.map((chart) => drawChart(chart, data, weight, fromZero, cursors));
    find("charts").replaceChildren(...figures.filter(Boolean));
    if (focused) find("charts").querySelector(`[data-chart="${focused}"] > svg`)?.focus();
    const several = data.runs.length > 1;
    find("warnings").replaceChildren(...data.runs.flatMap((run) => run.warnings.map((warning) =>
      element("li", {}, `⚠ ${several ? `${run.name}, ` : ""}step ${warning.step.toLocaleString("en")}: ${warning.words}`))));
    find("state").textContent = data.runs.map((run) =>
      `${several ? `${run.name}: ` : ""}step ${run.step.toLocaleString("en")}, ${run.complete ? "complete" : "not complete"}`).join("; ");
    find("figures").firstElementChild.replaceChildren(...data.figures.map(([name, value]) => element(
      "div", value.length > 40 ? { class: "long" } : {}, element("dt", {}, name), element("dd", {}, value))));
  };
  find("smoothing").addEventListener("input", draw);
  find("from-zero").addEventListener("change", draw);
  poll(root, () => `/curves.json?version=${encodeURIComponent(data.version)}`, 2, (news) => {
    if (!news.runs) return;
    data = news;
    draw();
  });
  draw();
};

document.querySelectorAll("[data-curves]").forEach(startCurves);
