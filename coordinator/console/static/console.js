// The live page: each event of the server redraws only the changed parts. Text is set as text, never as HTML.
"use strict";
(() => {
  const {Chart, shape, element} = Charts;
  const $ = id => document.getElementById(id);
  const STATES = {invited: "asked", accepted: "accepted", training: "trains", uploading: "uploads", reported: "reported",
    declined: "declined", failed: "failed", lost: "lost contact", late: "late"};
  const STEPS = [["selecting", "Select"], ["recruiting", "Recruit"], ["collecting", "Train"], ["unmasking", "Unmask"], ["aggregating", "Aggregate"]];
  const PHASES = ["select", "recruit", "download", "train", "upload", "aggregate"];
  const RETRY_MS = 2000, FIRST_ROUNDS = 12, MOST_ROWS = 300, MOST_COMPARED = 6;
  const ACTS = {
    quarantine: ["Quarantine", "Messages of the device are refused, also in the open round, and it is asked no more until its release.", true],
    drain: ["Drain", "The device finishes its work and is then asked no more until you resume it.", true],
    release: ["Release", "The device leaves the quarantine, and its offences are forgotten.", false],
    resume: ["Resume", "The maintenance is over: the device is asked again.", false],
  };

  const state = {live: null, run: "", metric: {}, rounds: [], devices: new Map(), runs: [], session: {}, chosen: new Set(),
    wholeTable: false, open: new Set(), details: new Map(), got: performance.now(), spoken: -Infinity, ready: false};
  const dirty = new Set();
  const rows = {fleet: new Map(), rounds: new Map()};
  const charts = {
    ua: new Chart($("c-ua"), "User accuracy by round"), time: new Chart($("c-time"), "Seconds by phase and round"),
    bytes: new Chart($("c-bytes"), "Traffic by round"), compare: new Chart($("c-compare"), "User accuracy of the chosen runs"),
  };

  // --- Texts of numbers, as the command line writes them.
  const ua = value => value === null || value === undefined ? "–" : Math.abs(value) >= 100 ? value.toPrecision(4) : value.toFixed(3);
  function bytes(count) {
    for (const [unit, factor] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
      if (count >= factor * 0.9995) return `${(count / factor).toFixed(count / factor < 9.95 ? 1 : 0)} ${unit}`;
    }
    return `${Math.round(count)} B`;
  }
  function duration(seconds) {
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds);
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    return `${Math.floor(whole / 3600)} h ${Math.floor(whole % 3600 / 60)} min`;
  }
  function age(unix) {
    const seconds = Math.max(0, Date.now() / 1000 - unix);
    for (const [unit, factor] of [["d", 86400], ["h", 3600], ["min", 60]]) if (seconds >= factor) return `${Math.floor(seconds / factor)} ${unit} ago`;
    return seconds < 10 ? "now" : `${Math.floor(seconds)} s ago`;
  }
  const moment = unix => new Date(unix * 1000).toLocaleString(undefined, {dateStyle: "medium", timeStyle: "short"});
  const byName = new Intl.Collator("en", {numeric: true}).compare;
  const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  function put(id, text) {
    const place = $(id);
    if (place.textContent !== text) place.textContent = text;
  }

  // --- The connection: one event stream, opened again after a pause whenever it ends.
  let source = null;
  function connect() {
    if (source) source.close();
    source = new EventSource("/events");
    for (const name of ["live", "runs", "rounds", "fleet"]) source.addEventListener(name, event => take(name, JSON.parse(event.data)));
    source.onopen = () => { state.ready = true; mark("live"); };
    source.onerror = () => {
      const ended = source.readyState === EventSource.CLOSED;
      state.ready = false;
      mark("live");
      if (ended) setTimeout(async () => { await refreshSession(); if (mayRead()) connect(); }, RETRY_MS);
    };
  }

  function take(name, data) {
    state.ready = true;
    if (name === "live") {
      state.live = data;
      state.got = performance.now();
    } else if (name === "runs") {
      state.runs = data;
    } else if (name === "rounds") {
      const fresh = !data.whole && data.run === state.run;
      state.rounds = data.whole ? data.rows : state.rounds.concat(data.rows);
      state.run = data.run;
      state.metric = data.metric;
      if (fresh && data.rows.length) speak(data.rows[data.rows.length - 1]);
      if (data.whole) rows.rounds.clear(), $("rounds-table").tBodies[0].replaceChildren();
      for (const id of state.open) loadDetail(id);
    } else {
      if (data.whole) state.devices.clear();
      for (const row of data.rows) state.devices.set(`${row.fleet}/${row.id}`, row);
    }
    mark(name);
    if (name === "rounds") mark("live");
    if (name === "live") mark("fleet");
  }

  // Evaluate rounds measure other devices than training rounds, so their figures are apart.
  const trained = row => row.ok && !row.evaluation;
  const outcome = row => row.evaluation ? (row.ok ? "evaluated" : "evaluation failed") : row.ok ? "aggregated" : "failed";

  function speak(row) {
    const now = performance.now();
    if (now - state.spoken < 5000) return;
    state.spoken = now;
    put("spoken", `Round ${row.n} ${outcome(row)}${row.ua === undefined ? "" : `, ${state.metric.name} ${ua(row.ua)}`}`);
  }

  // --- Drawing: at most once per frame, and only the changed parts.
  let asked = false;
  function mark(name) {
    dirty.add(name);
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      const names = [...dirty];
      dirty.clear();
      performance.mark("draw-begin");
      for (const one of names) DRAW[one]();
      performance.measure("draw", "draw-begin");
    });
  }
  const DRAW = {live: drawLive, rounds: drawRounds, fleet: drawFleet, runs: drawRuns};

  const status = () => state.live && state.live.status;
  const isOpen = now => Boolean(now) && now.coordinator !== "away" && !now.stopped && now.devices.length + now.others.length > 0;

  function drawLive() {
    const now = status(), run = state.runs.find(one => one.id === (now && now.run)) || state.runs.find(one => one.id === state.run);
    const last = state.rounds[state.rounds.length - 1];
    put("run-name", (run && run.id) || (now && now.run) || "no run yet");
    put("run-terms", run ? `${run.task} · ${run.strategy} · private ${run.private}` : "");
    drawPill(now);
    const open = isOpen(now), number = now ? now.round : last ? last.n : 0;
    put("t-round", number ? String(number) : "–");
    const all = (now && now.rounds_in_all) || (run && run.rounds_in_all);
    put("t-rounds", all ? `of ${all}` : "");
    put("t-measure", state.metric.name || "User accuracy");
    const current = open && now.user_accuracy !== null && now.reported >= now.needed ? now.user_accuracy : last && trained(last) ? last.ua : [...state.rounds].reverse().find(trained)?.ua;
    put("t-ua", ua(current));
    const target = now ? now.target_ua : run && run.target;
    put("t-target", target !== null && target !== undefined ? `of ${ua(target)}` : "");
    const compared = [...state.rounds].reverse().find(one => one.gaining !== undefined);
    $("gain-tile").hidden = !compared;
    if (compared) {
      put("t-gaining", `${Math.round(100 * compared.gaining)} %`);
      put("t-gain", `${compared.gain} over alone, round ${compared.n}`);
    }
    put("t-reported", open ? String(now.reported) : last ? String(last.reported) : "–");
    put("t-needed", open ? `of ${inRound(now)}, ${now.needed} needed` : last ? `of ${last.cohort}` : "");
    const down = state.rounds.reduce((sum, one) => sum + one.down, 0) + (open ? now.round_bytes_down : 0);
    const up = state.rounds.reduce((sum, one) => sum + one.up, 0) + (open ? now.round_bytes_up : 0);
    put("t-down", bytes(down));
    put("t-up", bytes(up));
    drawTimes();
    drawOpenRound(now, open);
    $("stop").hidden = !(state.session.logged_in && state.session.actions && run && run.status === "running");
  }

  function drawPill(now) {
    const [kind, words] = !state.ready ? ["bad", "console unreachable"] : !now ? ["wait", runs() ? "no live status" : state.runs.length ? state.runs[0].words : "waiting for a run"]
      : now.coordinator === "away" ? ["away", "coordinator away"] : now.stopped ? ["wait", state.runs.find(one => one.id === now.run)?.words || `over (${now.stopped})`]
      : !state.live.link ? ["away", "broker away"] : ["live", "live"];
    $("link").dataset.state = kind;
    put("link", words);
    const line = state.live && state.live.line;
    // Without a status, a line is of interest where one is expected: while a run goes on, or where no run is known.
    const missed = !now && state.live && (state.live.link === false || runs() || !state.runs.length);
    $("notice").hidden = !(line && (kind === "bad" || kind === "away" || missed));
    put("notice", line || "");
  }

  // Whether the newest run goes on, by its registry.
  const runs = () => state.runs.length > 0 && state.runs[0].status === "running";

  const inRound = now => now.devices.length + now.others.reduce((sum, one) => sum + one.count, 0);

  function drawTimes() {
    const now = status(), last = state.rounds[state.rounds.length - 1];
    if (isOpen(now)) {
      const passed = (performance.now() - state.got) / 1000;
      put("t-time", duration(now.elapsed_s + passed));
      put("t-eta", now.eta_s !== null && now.eta_s > passed ? `~${duration(now.eta_s - passed)} left` : "");
    } else {
      put("t-time", last ? duration(last.s) : "–");
      put("t-eta", "");
    }
  }
  setInterval(() => { if (!document.hidden && isOpen(status())) drawTimes(); }, 1000);

  function tally(now) {
    const counts = {};
    for (const one of now.devices) counts[one.state] = (counts[one.state] || 0) + 1;
    for (const one of now.others) counts[one.state] = (counts[one.state] || 0) + one.count;
    return counts;
  }

  function drawOpenRound(now, open) {
    const counts = open ? tally(now) : {}, all = open ? inRound(now) : 0;
    put("open-title", open ? `Round ${now.round}` : now && now.stopped ? "The run is over" : now ? "Between rounds" : runs() ? "No live status" : "No round is open");
    drawSteps(open ? now.phase : "");
    const bar = $("state-bar"), svg = shape("svg", {viewBox: "0 0 1000 18", preserveAspectRatio: "none", "aria-hidden": "true"});
    let at = 0;
    const order = ["reported", "uploading", "training", "accepted", "invited", "lost", "late", "declined", "failed"];
    for (const name of order) {
      if (!counts[name]) continue;
      const wide = 1000 * counts[name] / all;
      shape("rect", {x: at, width: wide, height: 18, class: `x-${name}`}, svg);
      at += wide;
    }
    bar.replaceChildren(svg);
    const words = Object.keys(STATES).filter(name => counts[name]).map(name => `${STATES[name]} ${counts[name]}`);
    bar.setAttribute("aria-label", words.length ? `${counted(all, "device")}: ${words.join(", ")}` : "No round is open");
    bar.hidden = !open;
    const list = $("state-counts");
    list.replaceChildren();
    for (const name of Object.keys(STATES)) {
      if (!counts[name]) continue;
      const line = element("li", null, list), dot = element("i", null, line, "dot");
      dot.dataset.s = name;
      line.append(`${STATES[name]} `);
      element("b", String(counts[name]), line);
    }
    const waits = waitWords(now, open);
    $("waits").hidden = !waits;
    put("waits", waits);
    drawChips(open ? now.devices : []);
    drawAbsences(open ? now : null);
  }

  function waitWords(now, open) {
    if (open) return "";
    const run = state.runs.find(one => one.id === (now ? now.run : state.run));
    if (!now || now.stopped) return run ? `${run.words} after ${counted(run.rounds, "round")}` : "Start one with fedpatch run, or with fedpatch demo on this machine.";
    if (now.coordinator === "away") return "The coordinator is away; its devices keep their updates until it is back.";
    if (now.silent_stores) return `The coordinator waits: ${now.silent_stores}.`;
    const parts = [`${now.present} of ${counted(now.wanted, "device")} ready`];
    if (now.starting) parts.push(`${now.starting} starting`);
    if (now.pause_s > 0) parts.push(`the next round begins in ${duration(now.pause_s)} or later`);
    for (const one of now.unwilling) parts.push(`${one.count}: ${one.why}`);
    if (now.missing) parts.push(now.missing);
    return parts.join("; ");
  }

  function drawSteps(phase) {
    const list = $("steps"), present = STEPS.findIndex(([name]) => name === phase);
    list.hidden = present < 0;
    const shown = STEPS.filter(([name]) => name !== "unmasking" || phase === name);
    if (list.children.length !== shown.length) list.replaceChildren(...shown.map(([, words]) => element("li", words)));
    shown.forEach(([name, words], i) => {
      const step = list.children[i], place = STEPS.findIndex(([one]) => one === name);
      step.textContent = words;
      if (place === present) step.setAttribute("aria-current", "step"); else step.removeAttribute("aria-current");
      step.dataset.step = present >= 0 && place < present ? "done" : "";
    });
  }

  function drawChips(devices) {
    const list = $("chips");
    while (list.children.length > devices.length) list.lastChild.remove();
    devices.forEach((device, i) => {
      const line = list.children[i] || list.appendChild(chip());
      const [name, words, bar] = [line.children[0], line.children[1], line.children[2]];
      if (name.lastChild.textContent !== device.device) name.lastChild.textContent = device.device;
      name.firstChild.dataset.s = device.state;
      const text = device.why ? `${device.words}: ${device.why}` : device.state === "training" && device.progress > 0 ? `${device.words}, ${Math.round(100 * device.progress)} %` : device.words;
      if (words.textContent !== text) words.textContent = text;
      bar.hidden = device.state !== "training" || !device.progress;
      bar.value = device.progress;
      bar.setAttribute("aria-label", `progress of ${device.device}`);
    });
  }
  function chip() {
    const line = element("li"), name = element("b", null, line);
    element("i", null, name, "dot");
    name.append(document.createTextNode(""));
    element("span", "", line);
    element("progress", null, line).max = 1;
    return line;
  }

  function drawAbsences(now) {
    const why = new Map();
    for (const one of now ? [...now.devices.map(d => ({...d, count: 1})), ...now.others] : []) {
      if (!["declined", "failed", "lost", "late"].includes(one.state)) continue;
      const key = `${one.words}${one.why ? `: ${one.why}` : ""}`, known = why.get(key) || {count: 0, names: []};
      known.count += one.count;
      if (one.device) known.names.push(one.device);
      why.set(key, known);
    }
    $("absences-title").hidden = !why.size;
    $("absences").replaceChildren(...[...why].map(([key, known]) => {
      const named = known.names.slice(0, 5).join(", "), more = known.count - Math.min(5, known.names.length);
      return element("li", `${known.count} ${key}${named ? ` (${named}${more > 0 ? ` and ${more} more` : ""})` : ""}`);
    }));
  }

  // --- Rounds.
  const field = name => state.rounds.filter(one => trained(one) && one[name] !== undefined).map(one => [one.n, one[name]]);

  function extent(values, target, fraction) {
    if (fraction) return [0, 1];
    const all = [...values, ...(target === null || target === undefined ? [] : [target])];
    if (!all.length) return [0, 1];
    const low = Math.min(...all), high = Math.max(...all), room = (high - low || Math.abs(high) || 1) * 0.08;
    return [low - room, high + room];
  }

  function drawRounds() {
    const all = state.rounds, xs = all.map(one => one.n), now = status();
    const target = now && now.run === state.run ? now.target_ua : state.runs.find(one => one.id === state.run)?.target;
    const measured = all.filter(one => trained(one) && one.ua !== undefined);
    const evaluated = all.filter(one => one.ok && one.evaluation && one.ua !== undefined).map(one => [one.n, one.ua]);
    const band = measured.filter(one => one.worst !== undefined).map(one => [one.n, Math.min(one.worst, one.ua), Math.max(one.best ?? one.ua, one.ua)]);
    const [low, high] = extent([...measured.flatMap(one => [one.ua, one.worst ?? one.ua, one.best ?? one.ua, one.after ?? one.ua]), ...evaluated.map(([, value]) => value)], target, state.metric.fraction);
    const best = measured.some(one => one.best !== undefined), fails = all.filter(one => !one.ok).map(one => one.n);
    const legend = [{kind: "line", class: "k1", name: "mean of the devices, before training"}];
    if (field("after").length) legend.push({kind: "line", class: "k2 thin", name: "mean after training"});
    if (evaluated.length) legend.push({kind: "line", class: "k3", name: "mean in evaluate rounds"});
    if (band.length) legend.push({kind: "area", class: "band", name: best ? "worst to best device" : "worst device to mean"});
    if (target !== null && target !== undefined) legend.push({kind: "target", name: `target ${ua(target)}`});
    if (fails.length) legend.push({kind: "fail", name: "failed round"});
    charts.ua.set({xs, low, high, band, target, fails, legend, height: 260, empty: "no round has ended yet", format: v => +v.toFixed(3),
      lines: [{points: field("after"), class: "k2 thin"}, {points: evaluated, class: "k3"}, {points: field("ua"), class: "k1"}],
      tell: i => tellRound(all[i])});
    put("c-ua-title", `${(state.metric.name || "user accuracy").replace(/^./, c => c.toUpperCase())} by round`);
    charts.ua.svg.setAttribute("aria-label", measured.length ? `${state.metric.name} by round: ${ua(measured[0].ua)} in round ${measured[0].n}, ${ua(measured.at(-1).ua)} in round ${measured.at(-1).n}` : "No round has ended yet");
    drawTimeAndBytes(all, xs);
    drawRoundTable();
  }

  const tellRound = row => [`Round ${row.n}: ${trained(row) ? "" : `${outcome(row)}, `}mean ${ua(row.ua)}`, row.worst === undefined ? "" : `worst ${ua(row.worst)}`, row.best === undefined ? "" : `best ${ua(row.best)}`,
    row.after === undefined ? "" : `after training ${ua(row.after)}`, `${row.reported} of ${row.cohort} reported`].filter(Boolean).join(", ");

  function drawTimeAndBytes(all, xs) {
    const longest = Math.max(1e-3, ...all.map(one => one.s)), most = Math.max(1, ...all.map(one => one.down + one.up));
    charts.time.set({xs, low: 0, high: longest * 1.05, bars: true, empty: "no round has ended yet", height: 200,
      parts: PHASES.map((name, i) => ({class: `q${i + 1}`, values: all.map(one => one.phases[i])})),
      legend: PHASES.map((name, i) => ({kind: "area", class: `fill q${i + 1}`, name})),
      format: v => +v.toPrecision(3),
      tell: i => `Round ${all[i].n}: ${PHASES.map((name, k) => [name, all[i].phases[k]]).filter(([, s]) => s >= 0.005).map(([name, s]) => `${name} ${s.toFixed(2)} s`).join(", ")}`});
    const [unit, factor] = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]].find(([, size]) => most >= 2 * size) || ["B", 1];
    put("c-bytes-title", `Traffic by round, ${unit}`);
    charts.bytes.set({xs, low: 0, high: most / factor * 1.05, bars: true, empty: "no round has ended yet", height: 200,
      parts: [{class: "k1", values: all.map(one => one.down / factor)}, {class: "k2", values: all.map(one => one.up / factor)}],
      legend: [{kind: "area", class: "fill k1", name: "to devices"}, {kind: "area", class: "fill k2", name: "from devices"}],
      format: v => +v.toPrecision(3), tell: i => `Round ${all[i].n}: ${bytes(all[i].down)} to devices, ${bytes(all[i].up)} from devices`});
  }

  function drawRoundTable() {
    const body = $("rounds-table").tBodies[0], shown = state.wholeTable ? state.rounds : state.rounds.slice(-FIRST_ROUNDS);
    put("h-ua", state.metric.name === "user accuracy" || !state.metric.name ? "UA" : state.metric.name);
    const first = shown.length ? shown[0].n : 0;
    for (const [number, row] of rows.rounds) if (number < first) { row.remove(); rows.rounds.delete(number); }
    const missing = shown.filter(one => !rows.rounds.has(one.n));
    for (const one of missing) rows.rounds.set(one.n, roundRow(one));
    const newest = Math.max(-1, ...[...body.rows].map(row => +row.dataset.n));
    if (missing.length && missing[0].n > newest) for (const one of missing) body.prepend(rows.rounds.get(one.n));
    else if (missing.length) body.replaceChildren(...[...shown].reverse().map(one => rows.rounds.get(one.n)));
    $("all-rounds").hidden = state.rounds.length <= FIRST_ROUNDS;
    put("all-rounds", state.wholeTable ? `Show the last ${FIRST_ROUNDS}` : `Show all ${state.rounds.length}`);
  }
  function roundRow(one) {
    const row = document.createElement("tr");
    row.dataset.n = one.n;
    if (!one.ok) row.className = "failed";
    const head = element("th", String(one.n), row, "n");
    head.scope = "row";
    element("td", one.ok ? outcome(one) : `${outcome(one)}: ${one.failure || ""}`, row);
    for (const text of [`${one.reported}/${one.cohort}`, ua(one.ua), ua(one.worst), ua(one.after), duration(one.s), bytes(one.down), bytes(one.up)]) element("td", text, row, "n");
    element("td", one.notes || "", row, "why");
    const names = $("rounds-table").tHead.rows[0].cells;
    [...row.cells].forEach((cell, at) => { if (at !== 1 && cell.textContent) cell.dataset.name = names[at].textContent; });
    return row;
  }
  $("all-rounds").onclick = () => { state.wholeTable = !state.wholeTable; mark("rounds"); };

  // --- Fleet.
  function stateOf(device, inTheRound) {
    if (device.hold) return ["held", device.hold, device.hold_reason || ""];
    const part = inTheRound.get(device.id);
    if (part && device.fleet === status().fleet) return [part.state, part.words, part.why];
    return device.online ? ["online", "online", device.reason && device.counts.declined + device.counts.failed ? `last time: ${device.reason}` : ""] : ["offline", "offline", ""];
  }

  function drawFleet() {
    const now = status(), inTheRound = new Map(isOpen(now) ? now.devices.map(one => [one.device, one]) : []);
    const find = $("find").value.trim().toLowerCase(), only = $("state-filter").value, body = $("fleet-table").tBodies[0];
    const all = [...state.devices].sort(([a], [b]) => byName(a, b));
    let shown = 0, left = 0, online = 0, before = null;
    for (const [key, device] of all) {
      const [kind, words, why] = stateOf(device, inTheRound);
      online += device.online;
      const wanted = matches(device, kind, words, why, find, only) && (shown < MOST_ROWS || !++left);
      if (!wanted) { dropRow(key); continue; }
      shown++;
      const row = rows.fleet.get(key) || newDeviceRow(key, device);
      fillDeviceRow(row, device, kind, words, why);
      const next = before ? before.nextSibling : body.firstChild;
      if (next !== row.main) body.insertBefore(row.main, next);
      before = row.main;
      if (row.detail) { if (before.nextSibling !== row.detail) body.insertBefore(row.detail, before.nextSibling); before = row.detail; }
    }
    for (const key of rows.fleet.keys()) if (!state.devices.has(key)) dropRow(key);
    put("fleet-count", all.length ? `${online} of ${all.length} online` : "no device yet");
    $("fleet-more").hidden = !left;
    put("fleet-more", left ? `${left} more; narrow the search to see them` : "");
  }
  const matches = (device, kind, words, why, find, only) => {
    const inside = STATES[kind] !== undefined;
    const fits = !only || (only === "in the round" ? inside : only === "held" ? kind === "held" : only === "online" ? device.online : !device.online);
    return fits && (!find || `${device.id} ${words} ${why} ${device.reason}`.toLowerCase().includes(find));
  };
  function dropRow(key) {
    const row = rows.fleet.get(key);
    if (!row) return;
    row.main.remove();
    if (row.detail) row.detail.remove();
    rows.fleet.delete(key);
    state.open.delete(key);
  }

  function newDeviceRow(key, device) {
    const main = document.createElement("tr"), head = element("th", null, main), button = element("button", device.id, head, "open");
    head.scope = "row";
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    const cells = [element("td", null, main, "nowrap"), element("td", null, main, "why")];
    element("i", null, cells[0], "dot");
    cells[0].append(document.createTextNode(""));
    for (let i = 0; i < 4; i++) cells.push(element("td", null, main, "n"));
    cells.push(element("td", null, main, "nowrap"));
    const row = {main, cells, button, detail: null, key};
    button.onclick = () => toggleDetail(row);
    rows.fleet.set(key, row);
    return row;
  }

  function fillDeviceRow(row, device, kind, words, why) {
    const counts = device.counts;
    const texts = [words, why, counts.invited, counts.reported, counts.declined, counts.failed + counts.lost + counts.refused + counts.late, device.online ? "connected" : age(device.seen)];
    row.cells[0].firstChild.dataset.s = kind;
    texts.forEach((text, i) => {
      const place = i ? row.cells[i] : row.cells[0].lastChild;
      if (place.textContent !== String(text)) place.textContent = text;
    });
    if (row.detail && row.device !== device) fillDetail(row, device);
    row.device = device;
  }

  function toggleDetail(row) {
    const open = !row.detail;
    row.button.setAttribute("aria-expanded", String(open));
    if (!open) {
      row.detail.remove();
      row.detail = null;
      state.open.delete(row.key);
      return;
    }
    row.detail = document.createElement("tr");
    row.detail.className = "detail";
    const whole = element("td", null, row.detail), cell = element("div", null, whole, "inside");
    whole.colSpan = 8;
    row.facts = element("dl", null, cell, "facts");
    row.history = element("p", "", cell, "soft");
    row.chart = new Chart(element("div", null, cell, "chart"), `History of ${row.device.id}`);
    row.acts = element("div", null, cell, "row filters");
    row.main.after(row.detail);
    state.open.add(row.key);
    fillDetail(row, row.device);
    loadDetail(row.key);
  }

  function fillDetail(row, device) {
    const {invited, ...counts} = device.counts;
    const facts = {asked: invited, ...counts, "first seen": moment(device.first_seen), version: device.version || "–", tasks: device.tasks.join(", ") || "–", "last reason": device.reason || "–", offences: device.offences};
    row.facts.replaceChildren(...Object.entries(facts).map(([name, value]) => {
      const pair = element("div");
      element("dt", name, pair);
      element("dd", String(value), pair);
      return pair;
    }));
    row.acts.replaceChildren();
    if (!(state.session.logged_in && state.session.actions)) return;
    for (const name of [device.quarantined ? "release" : "quarantine", device.drained ? "resume" : "drain"]) {
      const button = element("button", ACTS[name][0] + (ACTS[name][2] ? "…" : ""), row.acts);
      button.type = "button";
      button.onclick = () => ask(`${ACTS[name][0]} ${device.id}`, ACTS[name][1], ACTS[name][2], ACTS[name][0],
        reason => post(`/api/devices/${encodeURIComponent(device.fleet)}/${encodeURIComponent(device.id)}/${name}`, {reason}));
    }
  }

  async function loadDetail(key) {
    const row = rows.fleet.get(key);
    if (!row || !row.detail) return;
    const found = await get(`/api/devices/${key.split("/").map(encodeURIComponent).join("/")}`);
    if (!found || !row.detail) return;
    const known = found.rounds.filter(one => one.ua !== null), missed = found.rounds.at(-1)?.missed || 0;
    row.history.textContent = [missed ? `Missed ${counted(missed, "round")} in a row.` : "", known.length ? "" : "The rounds of this run name no user accuracy of this device."].filter(Boolean).join(" ");
    row.history.hidden = !row.history.textContent;
    row.chart.host.hidden = !known.length;
    const [low, high] = extent(known.map(one => one.ua), null, found.metric.fraction);
    row.chart.set({xs: known.map(one => one.n), low, high, height: 130, lines: [{points: known.map(one => [one.n, one.ua]), class: "k1"}],
      legend: [{kind: "line", class: "k1", name: `${found.metric.name || "user accuracy"} of ${found.device}`}], format: v => +v.toFixed(3), tell: i => `Round ${known[i].n}: ${ua(known[i].ua)}`});
  }
  $("find").oninput = () => mark("fleet");
  $("state-filter").onchange = () => mark("fleet");

  // --- Runs, side by side, and their settings.
  function drawRuns() {
    const body = $("runs-table").tBodies[0];
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.run : undefined;
    body.replaceChildren(...state.runs.map(run => {
      const row = document.createElement("tr"), box = document.createElement("input");
      box.type = "checkbox";
      box.checked = state.chosen.has(run.id);
      box.dataset.run = run.id;
      box.setAttribute("aria-label", `compare ${run.id}`);
      box.onchange = () => choose(run.id, box);
      element("td", null, row).append(box);
      const head = element("th", run.id, row, "mono");
      head.scope = "row";
      for (const text of [run.task, run.strategy, run.private, run.words]) element("td", text, row, "nowrap");
      element("td", String(run.rounds), row, "n");
      element("td", ua(run.ua), row, "n");
      element("td", moment(run.created_at), row, "nowrap");
      return row;
    }));
    if (focused) body.querySelector(`[data-run="${CSS.escape(focused)}"]`)?.focus();
    const select = $("settings-run"), ids = state.runs.map(run => run.id);
    if ([...select.options].map(one => one.value).join() !== ids.join()) {
      const before = select.value, first = ids[0] || "";
      select.replaceChildren(...ids.map(id => new Option(id, id)));
      select.value = ids.includes(before) && select.dataset.picked ? before : first;
      drawSettings();
    }
    if (state.chosen.size) compare();
    mark("live");
  }

  function choose(id, box) {
    if (box.checked && state.chosen.size >= MOST_COMPARED) {
      box.checked = false;
      return notify(`At most ${MOST_COMPARED} runs can be compared.`);
    }
    if (box.checked) state.chosen.add(id); else state.chosen.delete(id);
    compare();
  }

  const documents = new Map();
  async function runDocument(id) {
    const run = state.runs.find(one => one.id === id), key = `${id} ${run ? `${run.rounds} ${run.status}` : ""}`;
    if (documents.get(id)?.key !== key) {
      const found = await get(`/api/runs/${encodeURIComponent(id)}`);
      if (!found) return null;
      documents.set(id, {key, found});
    }
    return documents.get(id).found;
  }

  let comparing = 0, settingsAsked = 0;
  async function compare() {
    const turn = comparing += 1, found = (await Promise.all([...state.chosen].map(runDocument))).filter(Boolean);
    if (turn !== comparing) return;  // a later call draws
    $("comparison").hidden = found.length < 1;
    if (!found.length) return;
    const lines = found.map((one, i) => ({class: `k${i % 6 + 1}`, points: one.rounds.filter(r => trained(r) && r.ua !== undefined).map(r => [r.n, r.ua])}));
    const most = Math.max(1, ...found.flatMap(one => one.rounds.map(r => r.n)));
    const [low, high] = extent(lines.flatMap(line => line.points.map(([, y]) => y)), null, found.every(one => one.metric.fraction));
    const xs = Array.from({length: most}, (_, i) => i + 1);
    charts.compare.set({xs, low, high, lines, height: 260, format: v => +v.toFixed(3),
      legend: found.map((one, i) => ({kind: "line", class: `k${i % 6 + 1}`, name: `${one.run.id} (${ua(lines[i].points.at(-1)?.[1])})`})),
      tell: i => `Round ${xs[i]}: ${found.map(one => `${one.run.id} ${ua(one.rounds.find(r => r.n === xs[i])?.ua)}`).join(", ")}`});
    drawDifferences(found);
  }

  function drawDifferences(found) {
    const names = [...new Set(found.flatMap(one => one.settings.map(([name]) => name)))];
    const values = found.map(one => new Map(one.settings));
    const different = names.filter(name => new Set(values.map(map => map.get(name))).size > 1);
    const head = document.createElement("tr");
    for (const text of ["Setting", ...found.map(one => one.run.id)]) element("th", text, head).scope = "col";
    $("compare-table").tHead.replaceChildren(head);
    $("compare-table").tBodies[0].replaceChildren(...different.map(name => {
      const row = document.createElement("tr");
      element("th", name, row).scope = "row";
      for (const map of values) element("td", map.get(name) ?? "–", row, "why");
      return row;
    }));
    $("compare-table").hidden = found.length < 2 || !different.length;
    $("compare-same").hidden = found.length < 2 || different.length > 0;
  }

  async function drawSettings() {
    const turn = settingsAsked += 1, id = $("settings-run").value, found = id ? await runDocument(id) : null;
    if (turn !== settingsAsked) return;  // a later call draws
    $("settings-table").tBodies[0].replaceChildren(...(found ? found.settings : []).map(([name, value]) => {
      const row = document.createElement("tr");
      element("th", name, row, "mono").scope = "row";
      element("td", value, row, "why");
      return row;
    }));
  }
  $("settings-run").onchange = () => { $("settings-run").dataset.picked = "1"; drawSettings(); };

  // --- Requests, login and actions.
  async function get(path) {
    try {
      const answer = await fetch(path, {headers: {accept: "application/json"}});
      return answer.ok ? await answer.json() : null;
    } catch { return null; }
  }
  async function post(path, body) {
    const headers = {"content-type": "application/json", "x-csrf-token": state.session.csrf || ""};
    let answer;
    try {
      answer = await fetch(path, {method: "POST", headers, body: JSON.stringify(body || {})});
    } catch { throw new Error("the console does not answer"); }
    const found = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(found.error || `refused (${answer.status})`);
    return found;
  }
  const mayRead = () => !state.session.login_needed || state.session.logged_in;

  async function refreshSession() {
    const found = await get("/api/session");
    if (found) state.session = found;
    const {actions, logged_in: inside, login_needed: needed} = state.session;
    $("login").hidden = inside || !(actions || needed);
    $("logout").hidden = !inside;
    const files = state.session.begin || [];
    $("begin").hidden = !files.length;
    $("begin-name").replaceChildren(...files.map(name => new Option(name, name)));
    put("rights", actions ? inside ? "actions are on" : "log in to act" : "reading only");
    for (const row of rows.fleet.values()) if (row.detail) fillDetail(row, row.device);
    mark("live");
  }

  let notified = 0;
  function notify(text) {
    put("spoken", text);
    put("notice", text);
    $("notice").hidden = false;
    clearTimeout(notified);
    notified = setTimeout(() => mark("live"), 6000);
  }

  let asking = null;
  function ask(title, text, withReason, ok, act) {
    asking = act;
    put("ask-title", title);
    put("ask-text", text);
    put("ask-ok", ok);
    put("ask-error", "");
    $("ask-label").hidden = !withReason;
    $("ask-reason").required = withReason;
    $("ask-reason").value = "";
    $("ask-dialog").showModal();
  }
  $("ask-cancel").onclick = () => $("ask-dialog").close();
  $("ask-form").onsubmit = async event => {
    event.preventDefault();
    $("ask-ok").disabled = true;
    try {
      const found = await asking($("ask-reason").value);
      $("ask-dialog").close();
      notify(found.done);
    } catch (error) { put("ask-error", error.message); }
    $("ask-ok").disabled = false;
  };
  $("stop").onclick = () => {
    const id = status()?.run || state.run;
    ask("Stop after this round", `Run ${id} ends when its open round is over. "fedpatch resume" goes on with it.`, false, "Stop", () => post(`/api/runs/${encodeURIComponent(id)}/stop`));
  };
  $("begin-run").onclick = () => {
    const name = $("begin-name").value;
    ask(`Begin ${name}`, "A coordinator starts with these settings, or resumes their interrupted run. It does not end with this console.", false, "Begin", () => post(`/api/begin/${encodeURIComponent(name)}`));
  };
  $("login").onclick = () => { put("login-error", ""); $("token").value = ""; $("login-dialog").showModal(); };
  $("login-cancel").onclick = () => $("login-dialog").close();
  $("logout").onclick = async () => {
    try { await post("/api/logout"); } catch (error) { notify(error.message); }
    location.reload();
  };
  $("login-form").onsubmit = async event => {
    event.preventDefault();
    try {
      await post("/api/login", {token: $("token").value});
      $("token").value = "";
      $("login-dialog").close();
      await refreshSession();
      if (!source || source.readyState === EventSource.CLOSED) connect();
    } catch (error) { put("login-error", error.message); }
  };

  // --- Which section the page shows.
  const links = new Map([...document.querySelectorAll("nav a")].map(link => [link.hash.slice(1), link]));
  const observer = new IntersectionObserver(seen => {
    for (const one of seen) if (one.isIntersecting) for (const [id, link] of links) {
      if (id === one.target.id) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    }
  }, {rootMargin: "-30% 0px -65% 0px"});
  for (const id of links.keys()) observer.observe($(id));

  drawSteps("");
  mark("rounds");
  refreshSession().then(() => { if (mayRead()) connect(); else $("login-dialog").showModal(); });
})();
