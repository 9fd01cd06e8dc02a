(function () {
  "use strict";
  var tip = document.getElementById("tip");
  function show(event) {
    if (event.target.tagName === "CANVAS") return; // figures show their own tips
    var mark = event.target.closest && event.target.closest("[data-tip]");
    if (!mark) { tip.hidden = true; return; }
    tip.textContent = mark.getAttribute("data-tip");
    tip.hidden = false;
    var x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 6);
    var y = event.clientY + 16;
    if (y + tip.offsetHeight > window.innerHeight) y = event.clientY - tip.offsetHeight - 10;
    tip.style.left = Math.max(4, x) + "px";
    tip.style.top = y + "px";
  }
  document.addEventListener("mousemove", show);
  document.addEventListener("click", show);
  document.addEventListener("scroll", function () { tip.hidden = true; }, { passive: true });

  function value(row, column) {
    var cell = row.cells[column];
    var text = cell.dataset.value || cell.textContent.trim();
    var number = parseFloat(text.replace(/[,<≤]/g, "").replace("−", "-"));
    return isNaN(number) ? text : number;
  }
  document.querySelectorAll("th").forEach(function (head) {
    head.className += " sortable";
    head.title = "sort";
    head.addEventListener("click", function () {
      var body = head.closest("table").tBodies[0];
      var column = head.cellIndex;
      var up = head.dataset.up !== "1";
      head.dataset.up = up ? "1" : "0";
      Array.from(body.rows).sort(function (a, b) {
        var p = value(a, column), q = value(b, column);
        var less = typeof p === typeof q ? (p < q ? -1 : p > q ? 1 : 0) : typeof p === "number" ? -1 : 1;
        return up ? less : -less;
      }).forEach(function (row) { body.appendChild(row); });
    });
  });
  function unfold() { // open the <details> around the target of a link
    var target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    var details = target && target.closest("details");
    if (details && !details.open) { details.open = true; target.scrollIntoView(); }
  }
  window.addEventListener("hashchange", unfold);
  unfold();
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (d) { d.open = true; });
  });
})();
