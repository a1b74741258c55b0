(() => {
  "use strict";
  const table = document.querySelector("table.runs");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, i) => row.cells[i].dataset.key || row.cells[i].textContent;
  const keys = new Map(rows.map(row => [row, heads.map((_, i) => key(row, i))]));

  const sort = (head, i) => {
    const now = head.getAttribute("aria-sort");
    const way = !now ? head.dataset.first : now === "ascending" ? "descending" : "ascending";
    heads.forEach(h => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", way);
    const sign = way === "ascending" ? 1 : -1;
    const sorted = [...rows].sort((a, b) => sign * keys.get(a)[i].localeCompare(keys.get(b)[i], "en", { numeric: true }));
    body.append(...sorted);  // rows that are equal stay newest first
  };

  heads.forEach((head, i) => {
    if (!head.dataset.first) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(head, i));
    head.replaceChildren(button);
  });

  if (rows.length > 1) {
    const label = document.createElement("label");
    const field = document.createElement("input");
    const said = document.createElement("span");
    const texts = new Map(rows.map(row => [row, [...row.cells].map(c => c.textContent).join(" ").toLowerCase()]));
    field.type = "search";
    label.append("Filter ", field);
    said.setAttribute("role", "status");
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      rows.forEach(row => { row.hidden = !words.every(w => texts.get(row).includes(w)); });
      const left = rows.filter(row => !row.hidden).length;
      said.textContent = words.length ? `${left} of ${rows.length} runs` : "";
    });
    const bar = document.createElement("p");
    bar.className = "sorting";
    bar.append(label, said);
    table.before(bar);
  }
})();
