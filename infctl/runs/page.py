"""The style and script of report.html."""

STYLE = """
:root{--bg:#f6f7f9;--card:#fff;--ink:#16181d;--soft:#667085;--line:#e4e7ec;--good:#067647;
--bad:#b42318;--c0:#98a2b3;--c1:#2563eb;--c2:#d97706;--c3:#0d9488;--c4:#9333ea;--c5:#db2777}
@media(prefers-color-scheme:dark){:root{--bg:#0e1116;--card:#171b22;--ink:#e7eaf0;--soft:#97a1b2;
--line:#2a303b;--good:#4ade80;--bad:#f87171;--c0:#7d8799;--c1:#60a5fa;--c2:#fbbf24;--c3:#2dd4bf;
--c4:#c084fc;--c5:#f472b6}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
header{margin-bottom:20px}
.brand{margin:0;color:var(--c1);font-weight:600;letter-spacing:.02em}
h1{margin:2px 0 10px;font-size:clamp(22px,4vw,32px);line-height:1.2;letter-spacing:-.015em}
h2{margin:0;font-size:16px}
.chips{display:flex;flex-wrap:wrap;gap:6px}
.chips span{padding:2px 10px;border:1px solid var(--line);border-radius:99px;background:var(--card);
color:var(--soft);font-size:13px;overflow-wrap:anywhere}
.alarm{color:var(--bad);font-weight:600}
.tiles{display:grid;grid-template-columns:repeat(4,minmax(0,1fr));gap:12px;
margin-bottom:12px}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:12px}
.tile{padding:14px 16px}
.tile p{margin:0;color:var(--soft);font-size:13px}
.tile strong{display:block;font-size:25px;line-height:1.3;letter-spacing:-.02em;
font-variant-numeric:tabular-nums;white-space:nowrap}
.tile small{color:var(--soft);font-size:12.5px}
.card{padding:16px 18px;margin-bottom:12px;min-width:0}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:0 12px}
.note,.nothing{margin:2px 0 8px;color:var(--soft);font-size:13px}
.good{color:var(--good)}.bad{color:var(--bad)}
.tile .good,.tile .bad{font-weight:600}
.tile small span{white-space:nowrap}
@media(max-width:820px){.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}}
svg{display:block;width:100%;height:auto;touch-action:pan-y}
svg text{font-size:12px;fill:var(--soft)}
.grid{stroke:var(--line);stroke-width:1}
.line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round}
.bar{fill:currentColor}.bar:hover{opacity:.75}
.slo{stroke:var(--bad);stroke-dasharray:4 4;opacity:.7}
svg .slo-text{fill:var(--bad);font-size:11px}
.cursor{stroke:var(--soft);stroke-width:1;opacity:.6}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}
.c4{color:var(--c4)}.c5{color:var(--c5)}
.e0{color:#2563eb}.e1{color:#0891b2}.e2{color:#0d9488}.e3{color:#65a30d}.e4{color:#ca8a04}
.e5{color:#ea580c}.e6{color:#db2777}.e7{color:#7c3aed}
.e0.line,.e1.line,.e2.line,.e3.line,.e4.line,.e5.line,.e6.line,.e7.line{stroke-width:1.3;
opacity:.85}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;margin:4px 0 6px;font-size:13px}
.key::before{content:"";display:inline-block;width:10px;height:10px;margin-right:6px;
border-radius:3px;background:currentColor}
.key{white-space:nowrap}
.scroll{overflow-x:auto}
table{width:100%;border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;border-top:1px solid var(--line);text-align:right;white-space:nowrap}
th{border-top:0;color:var(--soft);font-weight:500}
th:first-child,td:first-child{padding-left:0;text-align:left}
.figures td:first-child{white-space:normal}
.figures i{display:inline-block;min-width:74px;font-style:normal}
.figures th:nth-child(n+3){padding-right:84px}
.named th:nth-child(2),.named td:nth-child(2){text-align:left}
summary{cursor:pointer;color:var(--soft);font-size:14px}
ul{margin:6px 0;padding-left:18px}ul:empty{display:none}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;margin:8px 0;font-size:14px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
pre{margin:10px 0 0;padding:10px 12px;overflow-x:auto;border-radius:8px;background:var(--bg);
font-size:13px}
@media(max-width:560px){.tile{padding:12px}.tile strong{font-size:21px}main{padding:18px 12px 40px}
.card{padding:14px 12px}
th,td{padding:6px 6px}table{font-size:13px}.figures i{display:block;min-width:0}
.figures th{white-space:normal;overflow-wrap:anywhere}.figures th:nth-child(n+3){padding-right:6px}}
#tip{position:fixed;z-index:9;display:none;max-width:300px;padding:7px 10px;border-radius:8px;
background:var(--ink);color:var(--bg);font-size:12.5px;pointer-events:none}
#tip i{display:inline-block;width:8px;height:8px;margin-right:6px;border-radius:2px;
background:currentColor}
"""

SCRIPT = """
(() => {
const tip = document.getElementById('tip');
const place = (e) => {
  tip.style.display = 'block';
  const w = tip.offsetWidth, h = tip.offsetHeight;
  tip.style.left = Math.max(4, Math.min(innerWidth - w - 4, e.clientX + 14)) + 'px';
  tip.style.top = Math.max(4, Math.min(innerHeight - h - 4, e.clientY + 14)) + 'px';
};
const hide = () => { tip.style.display = 'none'; };
const text = (v, unit) => {
  if (unit === '%') return (v * 100).toFixed(1) + ' %';
  if (unit === 'ms') return v >= 1000 ? (v / 1000).toFixed(2) + ' s' : v.toFixed(0) + ' ms';
  const n = v.toLocaleString('en', { maximumFractionDigits: v < 100 ? 1 : 0 });
  return unit ? n + ' ' + unit : n;
};
const at = (points, x) => {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (points[mid][0] < x) low = mid + 1; else high = mid;
  }
  if (low > 0 && x - points[low - 1][0] < points[low][0] - x) low -= 1;
  return points[low][1];
};
document.querySelectorAll('svg[data-chart]').forEach((svg) => {
  const chart = JSON.parse(svg.dataset.chart);
  const [left, right, top, bottom] = chart.box;
  const [low, high, log, unit] = chart.x;
  const cursor = document.createElementNS('http://www.w3.org/2000/svg', 'line');
  cursor.setAttribute('class', 'cursor');
  cursor.setAttribute('y1', top);
  cursor.setAttribute('y2', bottom);
  svg.addEventListener('pointermove', (e) => {
    const rect = svg.getBoundingClientRect();
    const x = (e.clientX - rect.left) * svg.viewBox.baseVal.width / rect.width;
    const share = (x - left) / (right - left);
    if (share < 0 || share > 1) { hide(); cursor.remove(); return; }
    const value = log ? low * Math.pow(high / low, share) : low + (high - low) * share;
    cursor.setAttribute('x1', x);
    cursor.setAttribute('x2', x);
    svg.append(cursor);
    tip.replaceChildren();
    const head = document.createElement('b');
    head.textContent = text(value, unit);
    tip.append(head);
    chart.series.forEach((s) => {
      const row = document.createElement('div'), dot = document.createElement('i');
      dot.className = s.css;
      row.append(dot, s.name + ': ' + text(at(s.points, value), chart.unit));
      tip.append(row);
    });
    place(e);
  });
  svg.addEventListener('pointerleave', () => { hide(); cursor.remove(); });
});
document.querySelectorAll('[data-tip]').forEach((bar) => {
  bar.addEventListener('pointermove', (e) => { tip.textContent = bar.dataset.tip; place(e); });
  bar.addEventListener('pointerleave', hide);
});
})();
"""
