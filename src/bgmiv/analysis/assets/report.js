(() => {
  "use strict";
  const find = (id) => document.getElementById(id);
  const all = (selector) => Array.from(document.querySelectorAll(selector));
  const data = JSON.parse(find("analysis").textContent);
  const levelled = data.levels.length > 0;
  let chosen = 0;

  // Numbers as the rest of the page writes them.
  const digits = (values) => {
    const finite = values.filter(Number.isFinite);
    const largest = Math.max(0, ...finite.map(Math.abs));
    const scale = Math.max(...finite) - Math.min(...finite) || largest;
    if (!finite.length || scale < 1e-4 || largest >= 1e9) return null;
    return Math.min(Math.max(2 - Math.floor(Math.log10(scale)), 0), 8);
  };
  const fixed = (value, decimals) => {
    if (!Number.isFinite(value)) return "n/a";
    if (decimals === null) return value.toPrecision(3);
    const [whole, part] = value.toFixed(decimals).split(".");
    const text = whole.replace(/\B(?=(\d{3})+$)/g, ",") + (part ? `.${part}` : "");
    return /[1-9]/.test(text) ? text : text.replace("-", "");
  };
  const short = (value) => String(Number(value.toPrecision(4)));
  const share = (value) => {
    if (value > 0 && value < 0.01) return "<1%";
    if (value > 0.99 && value < 1) return ">99%";
    return `${Math.round(100 * value)}%`;
  };
  const level = `${Number((100 * data.level).toPrecision(4))}%`;

  // A row of values along the grid, read between its points.
  const place = (curve, t) => {
    const last = curve.treatment.length - 1;
    let i = 0;
    while (i < last - 1 && curve.treatment[i + 1] < t) i += 1;
    const along = (t - curve.treatment[i]) / (curve.treatment[i + 1] - curve.treatment[i]);
    return (values) => values[i] + (values[i + 1] - values[i]) * along;
  };
  const quantile = (inverse) => {
    const at = Math.min(Math.max(inverse, 0), 1) * (data.quantiles.length - 1);
    const i = Math.min(Math.floor(at), data.quantiles.length - 2);
    return data.quantiles[i] + (data.quantiles[i + 1] - data.quantiles[i]) * (at - i);
  };
  // Variances of sources add up; Student's quantile is taken at Satterthwaite's degrees of freedom.
  const difference = (curve, t0, t1) => {
    const [first, second, effect, low, high, inside] = curve.effect;
    if (t0 === first && t1 === second) return { values: low === null ? [effect] : [effect, low, high], inside };
    const from = place(curve, t0);
    const to = place(curve, t1);
    const estimate = to(curve.estimate) - from(curve.estimate);
    const shown = Math.min(from(curve.in_support), to(curve.in_support));
    if (!curve.sources.length) return { values: [estimate], shown };
    let total = 0;
    let doubt = 0;
    for (const source of curve.sources) {
      const variance = source.factors.reduce((sum, row) => sum + (to(row) - from(row)) ** 2, 0);
      total += variance;
      if (source.dof !== null) doubt += variance ** 2 / source.dof;
    }
    const inverse = total > 0 ? doubt / total ** 2 : 0;
    const half = quantile(inverse) * Math.sqrt(total);
    return { values: [estimate, estimate - half, estimate + half], shown };
  };

  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const canvas = find("curve");
  const slider = find("place");
  const cursor = canvas && canvas.querySelector(".cursor");
  const x = (t) => `${(100 * (t - data.across[0])) / (data.across[1] - data.across[0])}%`;
  const y = (g) => {
    const way = (g - data.up[0]) / (data.up[1] - data.up[0]);
    return `${100 * (1 - Math.min(Math.max(way, 0), 1))}%`;
  };

  const pointwise = find("pointwise");
  const wide = (curve) => curve.band_lower.length > 0 && !(pointwise && pointwise.checked);
  const readings = {};
  const asked = () => ["t0", "t1"].map((name) => parseFloat(find(name).value));
  const draw = () => {
    if (!cursor) return;
    const curve = data.curves[chosen];
    const i = Number(slider.value);
    const parts = [
      svg("line", { x1: x(curve.treatment[i]), x2: x(curve.treatment[i]), y1: 0, y2: "100%" }),
      svg("circle", { cx: x(curve.treatment[i]), cy: y(curve.estimate[i]), r: 5.5 }),
    ];
    if (readings.ends) {
      for (const t of readings.ends) {
        const g = place(curve, t)(curve.estimate);
        parts.push(svg("line", { class: "drop", x1: x(t), x2: x(t), y1: y(g), y2: "100%" }));
        parts.push(svg("circle", { class: "end", cx: x(t), cy: y(g), r: 5 }));
      }
    }
    cursor.replaceChildren(...parts);
  };
  const read = () => {
    if (!slider) return;
    const curve = data.curves[chosen];
    const i = Number(slider.value);
    const [low, high] = wide(curve) ? [curve.band_lower, curve.band_upper] : [curve.lower, curve.upper];
    const ends = low.length ? [low[i], high[i]] : [];
    const decimals = digits([curve.estimate[i], ...ends].concat(ends.length ? [] : curve.estimate));
    const texts = {
      "read-treatment": short(curve.treatment[i]),
      "read-estimate": fixed(curve.estimate[i], decimals),
      "read-interval": ends.length ? ends.map((end) => fixed(end, decimals)).join(" to ") : "none",
      "read-share": `${share(curve.in_support[i])} of ${data.units}`,
    };
    find("read-interval-name").textContent = `${level} ${wide(curve) ? "band" : "interval"}`;
    for (const [id, text] of Object.entries(texts)) find(id).textContent = text;
    slider.setAttribute("aria-valuetext", Object.values(texts).join("; "));
    draw();
  };
  const compute = () => {
    if (!find("contrast")) return;
    const curve = data.curves[chosen];
    const last = curve.treatment[curve.treatment.length - 1];
    // The fields show four digits of what a slider gives, which may lie just outside of the curve.
    const near = 1e-3 * (last - curve.treatment[0]);
    const within = (t) => Math.min(Math.max(t, curve.treatment[0]), last);
    const bad = asked().some((t) => Number.isNaN(t) || Math.abs(t - within(t)) > near);
    const [t0, t1] = asked().map(within);
    readings.ends = bad || levelled ? null : [t0, t1];
    if (bad) {
      find("contrast-value").textContent = "";
      find("contrast-interval").textContent = `Choose values from ${short(curve.treatment[0])} to ${short(last)}.`;
      find("contrast-share").textContent = "";
    } else {
      const { values, inside, shown } = difference(curve, t0, t1);
      const decimals = digits(values);
      const texts = values.map((value) => fixed(value, decimals));
      const seen = inside ?? shown;
      find("contrast-value").textContent = texts[0];
      const ends = values.length < 3 ? "no interval" : `${level} interval ${texts[1]} to ${texts[2]}`;
      const robust = inside !== undefined && curve.robust;
      const caution = data.weak && values.length > 2 ? ", not robust to weak instruments" : "";
      find("contrast-interval").textContent = robust ? `weak-instrument-robust ${level} set: ${robust}` : ends + caution;
      find("contrast-share").textContent = `${curve.label}; both values in support for ${inside === undefined ? "at most " : ""}${share(seen)} of ${data.units}`;
      Object.assign(find("contrast").dataset, { estimate: values[0], lower: values[1] ?? "", upper: values[2] ?? "" });
    }
    draw();
  };
  const choose = (i) => {
    chosen = i;
    for (const part of all("[data-curve]")) part.toggleAttribute("hidden", Number(part.dataset.curve) !== i);
    for (const row of all("[data-row]")) row.classList.toggle("chosen", i > 0 && Number(row.dataset.row) === i);
    for (const box of all("[data-toggle]")) toggle(box);
    const boxes = document.querySelector(".controls fieldset");
    // Other methods were asked about all rows only.
    if (boxes) boxes.disabled = i > 0;
    read();
    compute();
  };
  const toggle = (box) => {
    const shown = box.checked && chosen === 0;
    for (const part of all(`[data-method="${box.dataset.toggle}"]`)) part.toggleAttribute("hidden", !shown);
  };

  // Estimates and ends along a direct effect of an instrument are those of the lines drawn, one at each step.
  const direct = find("direct");
  const panels = all("[data-direct]");
  const several = find("direct-instrument");
  const shift = () => {
    const chosenOne = several ? Number(several.value) : Number(panels[0].dataset.direct);
    const panel = panels.find((each) => Number(each.dataset.direct) === chosenOne);
    for (const each of panels) each.toggleAttribute("hidden", each !== panel);
    const one = data.direct[chosenOne];
    const i = Number(direct.value) + 50;
    const [gamma] = one.gamma.map((values) => values[i]);
    const fit = one.fit.map((values) => values[i]);
    const line = one.line.map((values) => values[i]);
    const shown = (values) => {
      const texts = values.map((value) => fixed(value, digits(values)));
      return values.length < 3 ? texts[0] : `${texts[0]} (${texts[1]} to ${texts[2]})`;
    };
    const texts = {
      "direct-gamma": fixed(gamma, digits([one.gamma[0][0], 0])),
      "direct-fit": shown(fit),
      "direct-line": shown(line),
    };
    for (const [id, text] of Object.entries(texts)) find(id).textContent = text;
    direct.setAttribute("aria-valuetext", Object.values(texts).join("; "));
    const [low, high] = panel.dataset.span.split(" ").map(Number);
    const at = (value) => `${100 * (1 - Math.min(Math.max((value - low) / (high - low), 0), 1))}%`;
    const across = `${i}%`;
    panel.querySelector(".cursor").replaceChildren(
      svg("line", { x1: across, x2: across, y1: 0, y2: "100%" }),
      svg("circle", { cx: across, cy: at(fit[0]), r: 5.5 }),
    );
    Object.assign(find("direct-fit").dataset, { values: fit.join(" ") });
    Object.assign(find("direct-line").dataset, { values: line.join(" ") });
  };

  // Tables for others: words that a spreadsheet would take for a formula get an apostrophe before them.
  const guarded = (text) => (/^[=+\-@\t\r\n\uFF1D\uFF0B\uFF0D\uFF20]/.test(text) ? `'${text}` : text);
  const csvCell = (value) => {
    if (value === null) return "";
    const text = typeof value === "number" ? String(value) : guarded(value);
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  const csv = (table) => [table.columns, ...table.rows].map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
  const names = { "\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar", '"': "quotedbl" };
  const latexCell = (value) => {
    if (value === null) return "--";
    if (typeof value === "number") return `$${Number(value.toPrecision(4))}$`;
    return value.replace(/[{}$&#%_\\~^<>|"]/g, (sign) => (sign in names ? `\\text${names[sign]}{}` : `\\${sign}`));
  };
  const latex = (table) => {
    const kinds = table.columns.map((_, j) => (table.rows.some((row) => typeof row[j] === "string") ? "l" : "r"));
    const line = (row) => `${row.map(latexCell).join(" & ")} \\\\`;
    const body = table.rows.map(line);
    const parts = [`\\begin{tabular}{${kinds.join("")}}`, "\\toprule", line(table.columns), "\\midrule", ...body];
    return [...parts, "\\bottomrule", "\\end{tabular}", ""].join("\n");
  };
  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Where the browser keeps its clipboard from a file.
      const area = document.createElement("textarea");
      area.value = text;
      area.setAttribute("readonly", "");
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      if (!done) return "Not copied";
    }
    return "Copied";
  };
  const saved = (text, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    return "Saved";
  };
  const kinds = { csv: "Copy as CSV", latex: "Copy as LaTeX", file: "Download the data" };
  for (const place of all(".tools")) {
    const { table: name, what, only } = place.dataset;
    const table = data.tables[name];
    for (const [kind, text] of Object.entries(kinds)) {
      if (!table || (only && kind !== only)) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.setAttribute("aria-label", `${text}: ${what}`);
      Object.assign(button.dataset, { table: name, do: kind });
      button.addEventListener("click", async () => {
        button.textContent = kind === "file" ? saved(csv(table), `${name}.csv`) : await copied(kind === "csv" ? csv(table) : latex(table));
        setTimeout(() => { button.textContent = text; }, 1500);
      });
      place.append(button);
    }
  }

  document.documentElement.classList.add("js");
  if (direct) {
    direct.addEventListener("input", shift);
    if (several) several.addEventListener("change", shift);
    shift();
  }
  if (pointwise) pointwise.addEventListener("change", () => {
    for (const part of all(".band.inner")) part.toggleAttribute("hidden", !pointwise.checked);
    read();
  });
  const group = find("group");
  if (group) group.addEventListener("change", () => choose(Number(group.value)));
  for (const box of all("[data-toggle]")) box.addEventListener("change", () => toggle(box));
  if (slider) {
    slider.addEventListener("input", read);
    const follow = (event) => {
      const frame = canvas.getBoundingClientRect();
      const way = Math.min(Math.max((event.clientX - frame.left) / frame.width, 0), 1);
      const t = data.across[0] + way * (data.across[1] - data.across[0]);
      const grid = data.curves[chosen].treatment;
      slider.value = grid.reduce((best, value, i) => (Math.abs(value - t) < Math.abs(grid[best] - t) ? i : best), 0);
      read();
    };
    canvas.addEventListener("pointermove", follow);
    canvas.addEventListener("pointerdown", follow);
  }
  for (const name of ["t0", "t1"]) {
    const field = find(name);
    const slide = find(`${name}-slide`);
    if (field) field.addEventListener("input", () => {
      if (slide) slide.value = field.value;
      compute();
    });
    if (slide) slide.addEventListener("input", () => {
      field.value = short(Number(slide.value));
      compute();
    });
  }
  choose(0);
})();
