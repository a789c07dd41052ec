#pragma once
// The style sheet of report.html. Colours are the palette's custom properties.

#include <string_view>

namespace thimble::report {

inline constexpr std::string_view page_style = R"css(
*{box-sizing:border-box}
html{scroll-behavior:smooth;scroll-padding-top:24px;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.6 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'Liberation Sans',sans-serif;
 display:grid;grid-template-columns:264px minmax(0,1064px);justify-content:center}
a{color:var(--accent);text-decoration:none}
a:hover{text-decoration:underline}
:focus-visible{outline:2px solid var(--accent);outline-offset:2px;border-radius:4px}
h1,h2,h3{line-height:1.25;letter-spacing:-.011em;text-wrap:balance}
h1{font-size:34px;margin:0 0 8px;letter-spacing:-.022em}
h2{font-size:25px;margin:0 0 6px}
h3{font-size:17px;margin:0 0 14px}
p{margin:0 0 14px;max-width:74ch}
code{font:.9em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.muted{color:var(--muted)}
.good{color:var(--good)}
.alarm{color:var(--alarm)}

nav{position:sticky;top:0;align-self:start;height:100vh;overflow-y:auto;padding:44px 20px 24px 32px;font-size:14px;line-height:1.4}
nav b{display:block;font-size:12px;letter-spacing:.07em;text-transform:uppercase;color:var(--muted);font-weight:600;margin:0 0 8px 12px}
nav ol{list-style:none;margin:0;padding:0}
nav a{display:flex;gap:10px;padding:6px 12px;border-radius:8px;color:var(--ink)}
nav a:hover{background:var(--hairline);text-decoration:none}
nav a[aria-current]{background:var(--hairline);font-weight:600}
nav .mark{flex:none;width:1em;text-align:center}

main{padding:44px 32px 64px;min-width:0}
section{margin:64px 0 0}
.card{background:var(--surface);border:1px solid var(--hairline);border-radius:12px;padding:20px 24px;margin:0 0 20px}
.lead{font-size:18px;color:var(--muted);margin-bottom:20px}
.kicker{font-size:13px;letter-spacing:.07em;text-transform:uppercase;font-weight:600;color:var(--muted);margin:0 0 4px}

.stats{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:16px;margin:28px 0 20px}
.stats .card{margin:0;padding:16px 20px 18px}
.stats dt{font-size:13px;color:var(--muted);margin:0 0 4px}
.stats dd{margin:0;font-size:30px;line-height:1.2;font-weight:650;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.stats dd.words{font-size:19px;line-height:1.3;padding:6px 0 5px;letter-spacing:-.01em;overflow-wrap:anywhere}
.stats small{display:block;font-size:13px;line-height:1.45;font-weight:400;letter-spacing:0;color:var(--muted);margin-top:4px}
.meter{display:block;height:6px;border-radius:3px;background:var(--hairline);margin-top:10px;overflow:hidden}
.meter i{display:block;height:100%;background:var(--good)}

.terms{display:grid;grid-template-columns:repeat(auto-fit,minmax(240px,1fr));gap:4px 32px;margin:0}
.terms dt{font-weight:600}
.terms dd{margin:0 0 12px;color:var(--muted);font-size:15px;line-height:1.5}
.chips{display:flex;flex-wrap:wrap;gap:6px 20px;margin:8px 0 0;padding:14px 0 0;border-top:1px solid var(--hairline);font-size:14px;list-style:none}
.chips li{display:flex;align-items:center;gap:8px}
.swatch{display:inline-block;flex:none;width:12px;height:12px;border-radius:3px}

.findings{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:20px;margin:0 0 20px}
.findings .card{margin:0}
.findings p:last-child{margin:0}
.formula{font:19px/1.6 'STIX Two Text','Cambria Math',Cambria,Georgia,'Times New Roman','Liberation Serif',serif;overflow-wrap:anywhere}
.formula sub,.formula sup{font-size:.68em;line-height:0}
.status{font-size:14px;margin:10px 0 0!important}

figure{position:relative}
figure svg{display:block;width:100%;min-width:640px;height:auto;overflow:visible;touch-action:pan-y}
figure .scroll{overflow-x:auto}
figcaption{color:var(--muted);font-size:14.5px;line-height:1.5;margin-top:12px;max-width:84ch}
.tip{position:absolute;z-index:2;left:0;top:0;pointer-events:none;background:var(--surface);border:1px solid var(--axis);border-radius:8px;
 box-shadow:0 6px 24px rgba(0,0,0,.16);padding:9px 12px;font-size:13px;line-height:1.45;width:max-content;max-width:calc(100% - 16px);font-variant-numeric:tabular-nums}
.tip[hidden]{display:none}
.tip b{display:block;font-weight:600}
.tip .swatch{vertical-align:-1px}
.tip .path{display:block;color:var(--muted);overflow-wrap:anywhere;margin-bottom:4px}
.tip table{font-size:13px;width:auto}
.tip td{border:0;padding:1px 0;white-space:nowrap}
.tip td:first-child{padding-right:8px;width:1px}
.tip td:nth-child(n+3){text-align:right;padding-left:18px}
.tip td:nth-child(4){color:var(--muted);padding-left:10px}
.tip .near td:nth-child(2){font-weight:600}
.tip .swatch{vertical-align:-1px}
.tip .path{max-width:46ch}
.tip .sum td{border-top:1px solid var(--hairline);padding-top:3px}

.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px;line-height:1.35;font-variant-numeric:tabular-nums}
th{font-weight:600;color:var(--muted);font-size:13px;text-align:left;vertical-align:bottom;border-bottom:1px solid var(--axis);padding:0 10px 8px}
td{padding:8px 10px;border-bottom:1px solid var(--hairline);vertical-align:top}
th:first-child,td:first-child{padding-left:0}
th:last-child,td:last-child{padding-right:0}
tbody tr:last-child>td{border-bottom:0}
tbody tr:hover>td{background:color-mix(in srgb,var(--hairline) 40%,transparent)}
.n{text-align:right;white-space:nowrap}
td small{display:block;color:var(--muted);font-size:12.5px}
.rows td{white-space:nowrap}
.rows summary{cursor:pointer;list-style:none}
.rows summary::-webkit-details-marker{display:none}
.rows summary u{text-decoration:underline dotted var(--axis);text-underline-offset:3px}
.rows summary:hover u{text-decoration-color:var(--ink)}
.constant{font-size:14px;color:var(--muted);margin:0 0 16px}
.constant b{font-weight:600;color:var(--ink)}
.rows .terms{display:none;font-size:13px}
.rows tr:has(details[open])+.terms{display:table-row}
.rows tr:has(details[open])>td{border-bottom:0}
.rows .terms td{white-space:normal;text-align:right;padding-top:0}
.rows .terms span{white-space:nowrap;margin-left:20px}
.overview td:first-child{min-width:180px;font-weight:600}
.facts th{border:0;padding:4px 24px 4px 0;width:1px;white-space:nowrap;vertical-align:top}
.facts td{border:0;padding:4px 0;overflow-wrap:anywhere}
footer{margin-top:64px;color:var(--muted);font-size:14px}

@media (max-width:1080px){
 body{display:block}
 nav{position:static;height:auto;padding:24px 24px 0}
 nav ol{display:flex;flex-wrap:wrap;gap:4px}
 nav b{margin-left:0}
 nav a{border:1px solid var(--hairline);background:var(--surface)}
 main{padding:24px;margin:0 auto}
}
@media (max-width:720px){
 h1{font-size:28px}
 main{padding:20px 14px}
 .card{padding:16px}
 .overview th:nth-child(2),.overview td:nth-child(2){display:none}
}
@media print{
 @page{margin:16mm 14mm}
 body{display:block;background:#fff;font-size:10.5pt}
 nav,.tip{display:none!important}
 main{max-width:none;padding:0}
 section{margin-top:28px;break-before:auto}
 .card{border-color:#ddd;padding:12px 16px}
 figure,.findings,.stats,tr{break-inside:avoid}
 h2,h3,.lead{break-after:avoid}
 thead{display:table-header-group}
 .scroll{overflow:visible}
 .rows .terms{display:table-row}
 figure svg{min-width:0}
 table{font-size:8pt}
 th,td small,.rows .terms{font-size:7pt}
 th,td{padding-left:6px;padding-right:6px}
 .facts th,.facts td{font-size:8pt}
 a{color:inherit}
 .swatch,.meter,.meter i{print-color-adjust:exact;-webkit-print-color-adjust:exact}
}
)css";

}  // namespace thimble::report
