"use strict";
// Sorts and filters the tables. Values to compare are in data-v where they differ from what is shown.
(() => {
  const SCALE = { ns: 1e-9, "µs": 1e-6, us: 1e-6, ms: 1e-3, s: 1, b: 1, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40,
                  kb: 1e3, mb: 1e6, gb: 1e9, k: 1e3, m: 1e6, g: 1e9, t: 1e12, "%": 0.01, "×": 1, x: 1 };
  const valueOf = (cell) => cell.dataset.v ?? cell.textContent;
  const numberOf = (cell) => (valueOf(cell) === "" ? NaN : Number(valueOf(cell)));

  function compare(a, b, numeric, sign) {
    if (numeric) {
      const [x, y] = [numberOf(a), numberOf(b)];
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // what has no value stays last
      return sign * (x - y);
    }
    const [x, y] = [valueOf(a), valueOf(b)];
    if (!x || !y) return !x - !y;
    return sign * x.localeCompare(y, undefined, { numeric: true });
  }

  function sort(table, column) {
    const heads = [...table.tHead.rows[0].cells];
    const rising = heads[column].getAttribute("aria-sort") !== "ascending";
    heads.forEach((head, place) => head.setAttribute("aria-sort", place !== column ? "none" : rising ? "ascending" : "descending"));
    const numeric = heads[column].classList.contains("number");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(a.cells[column], b.cells[column], numeric, rising ? 1 : -1));
    table.tBodies[0].append(...rows);
  }

  // "= 256" and words are matched as text; "≥ 0.9", "<= 64 MiB", "12 ms" as numbers.
  function condition(field, numeric) {
    const text = field.value.trim();
    if (!text) return null;
    if (field.tagName === "SELECT") return (cell) => cell.textContent === text.slice(1);
    const match = /^(>=|<=|≥|≤|>|<|=)?\s*(-?[\d.]+(?:e[+-]?\d+)?)\s*([a-zµ%×]*)(?:\/s)?$/i.exec(text);
    if (!numeric || !match) {
      field.classList.toggle("wrong", numeric);
      return numeric ? null : (cell) => cell.textContent.toLowerCase().includes(text.toLowerCase());
    }
    const scale = match[3] ? SCALE[match[3].toLowerCase()] : 1;
    field.classList.toggle("wrong", scale === undefined);
    if (scale === undefined) return null;
    const bound = Number(match[2]) * scale;
    const test = { ">": (v) => v > bound, "<": (v) => v < bound, "≤": (v) => v <= bound, "<=": (v) => v <= bound,
                   "=": (v) => Math.abs(v - bound) <= 1e-9 * Math.abs(bound) }[match[1]] ?? ((v) => v >= bound);
    return (cell) => test(numberOf(cell));
  }

  function filter(holder) {
    const table = holder.querySelector("table");
    const heads = table.tHead.rows[0].cells;
    const fields = [...table.querySelectorAll(".filters input, .filters select")];
    const tests = fields.map((field, place) => {
      field.classList.remove("wrong");
      return condition(field, heads[place].classList.contains("number"));
    });
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      row.hidden = tests.some((test, place) => test && !test(row.cells[place]));
      shown += !row.hidden;
    }
    const all = table.tBodies[0].rows.length;
    holder.querySelector(".count").textContent = shown === all ? `${all} rows` : `${shown} of ${all} rows`;
  }

  for (const holder of document.querySelectorAll(".table")) {
    const table = holder.querySelector("table");
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => sort(table, column));
    });
    const filters = table.querySelector(".filters");
    if (filters) filters.addEventListener("input", () => filter(holder));
  }
})();
