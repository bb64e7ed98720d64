// Tables are sorted by a click (or Enter) on the head of a column: numbers as numbers, the rest as text.
(function () {
  "use strict";
  // "1,234 [1,200, 1,250] (5)" is 1234, a dash is nothing and stays last
  function key(cell) {
    var text = cell.textContent.trim();
    var number = text.replace(/,(?=\d{3}(\D|$))/g, "").match(/^[+\u2212-]?\d+(\.\d+)?(e[+-]?\d+)?/i);
    return { text: text, number: number ? parseFloat(number[0].replace("\u2212", "-")) : NaN, nothing: text === "" || text === "\u2013" };
  }
  function compare(a, b) {
    if (!isNaN(a.number) && !isNaN(b.number)) { return a.number - b.number; }
    return a.text.localeCompare(b.text, undefined, { numeric: true });
  }
  function sort(head) {
    var table = head.closest("table");
    var ascending = head.getAttribute("aria-sort") !== "ascending";
    table.querySelectorAll("th[aria-sort]").forEach(function (other) { other.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    var body = table.tBodies[0];
    var rows = Array.from(body.rows).map(function (row) { return { row: row, key: key(row.cells[head.cellIndex]) }; });
    rows.sort(function (a, b) {
      if (a.key.nothing || b.key.nothing) { return a.key.nothing - b.key.nothing; }
      return ascending ? compare(a.key, b.key) : compare(b.key, a.key);
    });
    rows.forEach(function (item) { body.appendChild(item.row); });
  }
  document.querySelectorAll("table.sortable thead th").forEach(function (head) {
    head.tabIndex = 0;
    head.setAttribute("role", "button");
    head.title = "sort";
    head.addEventListener("click", function () { sort(head); });
    head.addEventListener("keydown", function (event) {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(head); }
    });
  });
})();
