#pragma once
// The style of a plan's page, beside that of the report.

#include <string_view>

namespace thimble::report {

inline constexpr std::string_view plan_style = R"css(
body.plan{display:block}
.plan main{max-width:1180px;margin:0 auto}
.plan h4{margin:18px 0 2px;font-size:14px;color:var(--muted);font-weight:600}
.plan canvas{display:block;width:100%;touch-action:pan-y;cursor:crosshair}
.plan .chips{border:0;padding:0;margin:0 0 6px}
.plan .choice{display:flex;gap:8px;margin:0 0 12px}
.plan .choice button{font:inherit;font-size:14px;padding:4px 14px;border:1px solid var(--axis);border-radius:8px;background:var(--surface);color:var(--ink);cursor:pointer}
.plan .choice button[aria-pressed=true]{background:var(--ink);color:var(--surface);border-color:var(--ink)}
.plan figure{margin:0 0 24px}
.plan .stats{grid-template-columns:repeat(auto-fit,minmax(180px,1fr))}
.plan .stats dd{font-size:26px}
.plan table th[scope=row]{border-bottom:1px solid var(--hairline);padding:8px 10px 8px 0;color:var(--ink);vertical-align:top}
.plan tbody tr:last-child th{border-bottom:0}
)css";

}  // namespace thimble::report
