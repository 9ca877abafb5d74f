// Charts as SVG: lines with a band, and stacked bars. Texts and shapes are made by the DOM, never from markup.
"use strict";
const Charts = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const LEFT = 46, RIGHT = 10, TOP = 10, BOTTOM = 24;

  function shape(name, attributes, parent) {
    const made = document.createElementNS(NS, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(made);
    return made;
  }

  function element(name, text, parent, kind) {
    const made = document.createElement(name);
    if (text !== undefined && text !== null) made.textContent = text;
    if (kind) made.className = kind;
    if (parent) parent.appendChild(made);
    return made;
  }

  // Steps of 1, 2 or 5 times a power of ten.
  function ticks(low, high, most) {
    const rough = (high - low) / most || 1, power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= rough);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(at);
    return found;
  }

  // Return at most `most` points: the lowest and the highest of each section.
  function thinned(points, most) {
    if (points.length <= most) return points;
    const size = Math.ceil(points.length / (most / 2 - 1)), kept = new Set([0, points.length - 1]);
    for (let begin = 0; begin < points.length; begin += size) {
      let low = begin, high = begin;
      for (let i = begin; i < Math.min(begin + size, points.length); i++) {
        if (points[i][1] < points[low][1]) low = i;
        if (points[i][1] > points[high][1]) high = i;
      }
      kept.add(low).add(high);
    }
    return [...kept].sort((a, b) => a - b).map(i => points[i]);
  }

  const at = points => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

  // A chart in `host`, redrawn at each new width. `draw(svg, box)` fills it; `tell(x)` returns the text for a round.
  class Chart {
    constructor(host, label) {
      this.host = host;
      this.svg = shape("svg", {role: "img", tabindex: "0", "aria-label": label}, host);
      this.legend = element("ul", null, host, "legend");
      this.readout = element("p", null, host, "readout");
      this.model = null;
      this.chosen = -1;
      new ResizeObserver(() => this.render()).observe(host);
      this.svg.addEventListener("pointermove", event => this.pointAt(event.clientX));
      this.svg.addEventListener("pointerleave", () => this.choose(-1));
      this.svg.addEventListener("keydown", event => this.key(event));
    }

    set(model) {
      this.model = model;
      this.render();
    }

    render() {
      const model = this.model, width = this.host.clientWidth;
      if (!model || !width) return;
      const height = model.height || 220;
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.setAttribute("height", height);
      this.svg.replaceChildren();
      if (!model.xs.length) {
        shape("text", {x: width / 2, y: height / 2, "text-anchor": "middle"}, this.svg).textContent = model.empty || "nothing yet";
        return;
      }
      const [x0, x1] = [model.xs[0], model.xs[model.xs.length - 1]];
      const inner = {left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM};
      const half = model.bars ? 0.5 : 0, span = (x1 - x0 + 2 * half) || 1;
      const x = value => inner.left + (x1 === x0 && !half ? 0.5 : (value - x0 + half) / span) * (inner.right - inner.left);
      const y = value => inner.bottom - ((value - model.low) / ((model.high - model.low) || 1)) * (inner.bottom - inner.top);
      this.box = {x, y, inner, width, height};
      this.axes(model, x0, x1);
      (model.bars ? drawBars : drawLines)(this.svg, model, this.box);
      this.cursor = shape("line", {class: "cursor", y1: inner.top, y2: inner.bottom, visibility: "hidden"}, this.svg);
      this.drawLegend(model.legend);
      this.choose(Math.min(this.chosen, model.xs.length - 1));
    }

    axes(model, x0, x1) {
      const {x, y, inner} = this.box;
      for (const value of ticks(model.low, model.high, 4)) {
        shape("line", {class: "grid", x1: inner.left, x2: inner.right, y1: y(value), y2: y(value)}, this.svg);
        shape("text", {x: inner.left - 7, y: y(value) + 4, "text-anchor": "end"}, this.svg).textContent = model.format(value, model.high);
      }
      const places = ticks(x0, x1, Math.max(2, Math.floor((inner.right - inner.left) / 80))).filter(v => Number.isInteger(v));
      for (const value of x0 === x1 ? [x0] : places) {
        shape("text", {x: x(value), y: inner.bottom + 17, "text-anchor": "middle"}, this.svg).textContent = value;
      }
      shape("line", {class: "axis", x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom}, this.svg);
    }

    drawLegend(items) {
      const key = JSON.stringify(items);
      if (key === this.legendKey) return;
      this.legendKey = key;
      this.legend.replaceChildren();
      for (const item of items) {
        const line = element("li", null, this.legend), swatch = shape("svg", {viewBox: "0 0 22 10", "aria-hidden": "true"}, line);
        if (item.kind === "line") shape("path", {d: "M0 5H22", class: `line ${item.class}`}, swatch);
        else if (item.kind === "target") shape("path", {d: "M0 5H22", class: "target", "stroke-width": 2}, swatch);
        else if (item.kind === "fail") shape("circle", {cx: 11, cy: 5, r: 4, class: "fail"}, swatch);
        else shape("rect", {width: 22, height: 10, rx: 2, class: item.class}, swatch);
        line.append(item.name);
      }
    }

    pointAt(clientX) {
      if (!this.box || !this.model.xs.length) return;
      const edge = this.svg.getBoundingClientRect(), place = clientX - edge.left;
      let best = 0;
      this.model.xs.forEach((value, i) => {
        if (Math.abs(this.box.x(value) - place) < Math.abs(this.box.x(this.model.xs[best]) - place)) best = i;
      });
      this.choose(best);
    }

    key(event) {
      const last = this.model ? this.model.xs.length - 1 : -1;
      const moves = {ArrowLeft: Math.max(0, (this.chosen < 0 ? last : this.chosen) - 1), ArrowRight: Math.min(last, this.chosen + 1), Home: 0, End: last};
      if (!(event.key in moves) || last < 0) return;
      event.preventDefault();
      this.readout.setAttribute("aria-live", "polite");
      this.choose(moves[event.key]);
    }

    choose(index) {
      this.chosen = index;
      if (!this.cursor) return;
      if (index < 0) {
        this.cursor.setAttribute("visibility", "hidden");
        this.readout.removeAttribute("aria-live");
        this.readout.textContent = this.model.xs.length ? this.model.tell(this.model.xs.length - 1) : "";
        return;
      }
      const place = this.box.x(this.model.xs[index]);
      this.cursor.setAttribute("x1", place);
      this.cursor.setAttribute("x2", place);
      this.cursor.setAttribute("visibility", "visible");
      this.readout.textContent = this.model.tell(index);
    }
  }

  function drawLines(svg, model, {x, y, inner}) {
    const most = Math.max(80, inner.right - inner.left);
    if (model.band && model.band.length) {
      const high = model.band.map(([at, , top]) => [x(at), y(top)]), low = model.band.map(([at, bottom]) => [x(at), y(bottom)]);
      shape("path", {class: "band", d: `${at(thinned(high, most))}${at(thinned(low, most).reverse()).replace("M", "L")}Z`}, svg);
    }
    if (model.target !== null && model.target !== undefined && model.target >= model.low && model.target <= model.high) {
      shape("line", {class: "target", "stroke-width": 1.5, x1: inner.left, x2: inner.right, y1: y(model.target), y2: y(model.target)}, svg);
    }
    for (const line of model.lines) {
      const points = thinned(line.points.map(([a, b]) => [x(a), y(b)]), most);
      if (points.length === 1) shape("circle", {cx: points[0][0], cy: points[0][1], r: 3, class: `fill ${line.class}`}, svg);
      else if (points.length) shape("path", {class: `line ${line.class}`, d: at(points)}, svg);
    }
    for (const place of model.fails || []) shape("circle", {class: "fail", cx: x(place), cy: inner.bottom, r: 4}, svg);
  }

  // Of more rounds than there is room for, a bar is the mean of several.
  function drawBars(svg, model, {x, y, inner}) {
    const room = Math.max(10, Math.floor((inner.right - inner.left) / 4)), size = Math.ceil(model.xs.length / room);
    const paths = model.parts.map(() => "");
    for (let begin = 0; begin < model.xs.length; begin += size) {
      const end = Math.min(begin + size, model.xs.length), count = end - begin;
      const left = x(model.xs[begin] - 0.5), right = x(model.xs[end - 1] + 0.5);
      const gap = Math.min(3, (right - left) * 0.2), wide = Math.max(1, Math.min(48, right - left - gap)), from = (left + right - wide) / 2;
      let sum = 0;
      model.parts.forEach((part, i) => {
        let value = 0;
        for (let k = begin; k < end; k++) value += part.values[k] / count;
        if (value <= 0) return;
        const top = y(sum + value), bottom = y(sum);
        paths[i] += `M${from.toFixed(1)} ${bottom.toFixed(1)}V${top.toFixed(1)}h${wide.toFixed(1)}V${bottom.toFixed(1)}Z`;
        sum += value;
      });
    }
    paths.forEach((path, i) => path && shape("path", {class: `fill ${model.parts[i].class}`, d: path}, svg));
  }

  return {Chart, shape, element};
})();
