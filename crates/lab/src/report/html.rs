//! The report as one HTML page.

use std::fmt::Write as _;

use entrain_html::plot::{self, Axis, Dot};
use entrain_html::{Page, escape};

use super::words::{self, Verdict};
use super::{Report, Row};
use super::{markdown, short};
use crate::experiment::STOCK;
use crate::metric::Better;

/// What the page's style has beside the common one; colours in one place for light and dark.
const STYLE: &str = include_str!("page.css");

/// The whole page. What the loads measured is plotted, what probes counted is listed.
pub fn render(report: &Report) -> String {
    let style = format!("{}{STYLE}", plot::STYLE);
    Page::new(&format!("{}: {}", report.experiment, report.title), &style)
        .section(&head(report))
        .section(&in_short(report))
        .section(&shares(report))
        .section(&ratios(report))
        .section(&strips(report))
        .section(&counted(report))
        .section(&checks(report))
        .section(&boots(report))
        .section(&every_sample(report))
        .finish()
}

fn head(report: &Report) -> String {
    let machine = &report.machine;
    let guests: Vec<String> =
        machine.guests.iter().map(|(name, vcpus, mib)| format!("{name} ({vcpus} vCPUs, {mib} MiB)")).collect();
    let good = report.checks.iter().filter(|check| check.ok).count();
    let verdict = if report.ok() { ("good", "all checks hold") } else { ("bad", "not all is well: see below") };
    let mut html = format!(
        "<header><h1>{}</h1><p class=\"verdict {}\"><b>{} of {} checks hold</b>; {}</p>",
        escape(&report.title),
        verdict.0,
        good,
        report.checks.len(),
        verdict.1
    );
    for sentence in words::sentences(report) {
        let _ = write!(html, "<p class=\"short\">{}</p>", escape(&sentence));
    }
    for note in &report.notes {
        let _ = write!(html, "<p class=\"note\">{}</p>", escape(note));
    }
    let _ = write!(html, "<p>{}</p><dl>", escape(&report.description));
    let facts = [
        (
            "host machine",
            format!("{} ({}), {} pCPUs, {} MiB", machine.arch, machine.accel, machine.pcpus, machine.memory_mib),
        ),
        ("time", markdown::pace(report)),
        ("kernel", format!("Linux {}{}", machine.kernel, if machine.rt { ", PREEMPT_RT" } else { "" })),
        ("guests", guests.join(", ")),
        ("boots", format!("{} that went through, {} lost", report.boots.ok, report.boots.lost)),
        ("this computer", format!("{} CPUs, {}", machine.development_cpus, machine.development_cpu)),
        ("run", format!("{:.0} s, seed {}, entrain {}", report.seconds, report.seed, machine.entrain)),
    ];
    for (name, value) in facts {
        let _ = write!(html, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    for (name, title) in &report.configurations {
        let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(title));
    }
    for (name, title) in report.arms.iter().filter(|(name, _)| report.summary.iter().any(|row| row.arm == *name)) {
        let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(title));
    }
    html + "</dl></header>"
}

/// A quick run's figures for who sees the lab for the first time.
fn in_short(report: &Report) -> String {
    let shorts = short::of(report);
    if shorts.is_empty() {
        return String::new();
    }
    let mut html =
        "<section><h2>In short</h2><p>Times better than stock: a longer bar is better. The line is stock.</p>\
                    <div class=\"plot\">"
            .to_owned();
    for short in shorts {
        let _ = write!(html, "<h3>{}</h3><p>{}</p>", escape(&short.sentence), escape(&short.subject));
        let axis = Axis::of(&short.bars.iter().map(|(_, times)| *times).chain([0.0]).collect::<Vec<_>>());
        for (arm, times) in &short.bars {
            let value = words::factor(*times);
            let label = format!("{} {}: {value}", escape(&short.sentence), escape(arm));
            row(&mut html, arm, &plot::bar(&axis, *times, None, &label), &value, number_of(report, arm));
        }
    }
    html + "</div></section>"
}

/// One configuration as a share of another, as bars.
fn shares(report: &Report) -> String {
    let mut shares: Vec<_> = report.comparisons.iter().filter(|share| share.better == Better::Higher).collect();
    // A load's configurations below each other; the loads in their order.
    let order = |share: &super::Share| {
        report.comparisons.iter().position(|one| (&one.load, &one.metric) == (&share.load, &share.metric))
    };
    shares.sort_by_key(|share| order(share));
    if shares.is_empty() {
        return String::new();
    }
    let ends = |share: &&super::Share| [share.ratio.median, share.ratio.hi.unwrap_or(0.0), 1.0];
    let axis = Axis::of(&shares.iter().flat_map(ends).chain([0.0]).collect::<Vec<_>>());
    let mut html = "<section><h2>What overcommit leaves</h2><p>All guests together, as a share of the configuration that they are \
                    compared with. The line marks 100 %: what is missing was lost to overcommit.</p><div class=\"plot\">"
        .to_owned();
    let mut last = String::new();
    for share in shares {
        let group = format!("{}, {}", share.load, words::metric(&share.metric));
        if group != last {
            let _ = write!(html, "<h3>{}</h3>", escape(&group));
        }
        last = group;
        let value = format!("{:.0} %", share.ratio.median * 100.0);
        let name = if share.arm == STOCK { share.of.clone() } else { format!("{} {}", share.of, share.arm) };
        let interval = share.ratio.lo.zip(share.ratio.hi);
        let label = format!("{} {}: {value}", escape(&last), escape(&name));
        row(&mut html, &name, &plot::bar(&axis, share.ratio.median, interval, &label), &value, 1);
    }
    foot(&mut html, &axis, &|value| format!("{:.0} %", value * 100.0));
    html + "</div></section>"
}

/// Every arm against stock, turned so that right is better.
fn ratios(report: &Report) -> String {
    let rows: Vec<_> = report
        .summary
        .iter()
        .filter(|row| !row.counted)
        .filter_map(|row| Some((row, row.ratio_to_stock.as_ref()?)))
        .filter(|(_, ratio)| ratio.median > 0.0)
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let turned = |row: &Row, value: f64| if row.better == Better::Higher { value } else { 1.0 / value };
    let all = rows.iter().flat_map(|(row, ratio)| {
        [Some(ratio.median), ratio.lo, ratio.hi]
            .into_iter()
            .flatten()
            .map(|value| turned(row, value))
            .collect::<Vec<_>>()
    });
    let axis = Axis::of_ratios(&all.collect::<Vec<_>>());
    let mut html = "<section><h2>Each arm against stock</h2><p>Times better than stock (right of the line) or worse (left), \
                    paired within the same boot; the whiskers are 95 % intervals. For latencies, half the time counts as \
                    twice as good.</p><div class=\"plot\">"
        .to_owned();
    let mut last = String::new();
    for (row_, ratio) in rows {
        let group = format!("{}, {}", row_.load.replace('@', " at "), words::metric(&row_.metric));
        if group != last {
            let _ = write!(html, "<h3>{}</h3>", escape(&group));
        }
        last = group;
        let class = match words::verdict(ratio, row_.better) {
            Verdict::Better => "good",
            Verdict::Worse => "bad",
            Verdict::Unclear => "unclear",
        };
        let mut interval = ratio.lo.zip(ratio.hi).map(|(lo, hi)| (turned(row_, lo), turned(row_, hi)));
        interval = interval.map(|(one, other)| (one.min(other), one.max(other)));
        let value = words::factor(turned(row_, ratio.median));
        let label = format!("{} {}: {value}", escape(&last), escape(&row_.arm));
        let svg = plot::whisker(&axis, turned(row_, ratio.median), interval, class, &label);
        row(&mut html, &row_.arm, &svg, &value, number_of(report, &row_.arm));
    }
    foot(&mut html, &axis, &|value| format!("{}×", words::number(value)));
    html + "</div></section>"
}

/// Every sample of every metric, one plot a metric with all configurations and arms.
fn strips(report: &Report) -> String {
    let mut html =
        "<section><h2>Every sample</h2><p>Dots are samples, the upright line is their median, the box holds the \
                    middle half, the thin line all of them. Hollow dots were taken while another program kept this \
                    computer busy.</p>"
            .to_owned();
    let mut done: Vec<(String, String)> = Vec::new();
    for first in report.summary.iter().filter(|row| !row.counted) {
        let key = (words::base(&first.load).to_owned(), first.metric.clone());
        if done.contains(&key) {
            continue;
        }
        let rows: Vec<&Row> =
            report.summary.iter().filter(|row| words::base(&row.load) == key.0 && row.metric == key.1).collect();
        html.push_str(&metric(report, &rows, !done.iter().any(|(load, _)| *load == key.0)));
        done.push(key);
    }
    html + "</section>"
}

fn metric(report: &Report, rows: &[&Row], first: bool) -> String {
    let mut html = "<figure>".to_owned();
    if first {
        let title = report.loads.get(&rows[0].load).filter(|title| !title.is_empty());
        let _ = write!(
            html,
            "<h3 class=\"load\">{}</h3><p>{}</p>",
            escape(words::base(&rows[0].load)),
            escape(title.map_or("", |t| t))
        );
    }
    let direction = if rows[0].better == Better::Higher { "more is better" } else { "less is better" };
    let _ = write!(
        html,
        "<figcaption><b>{}</b> in {}, {direction}</figcaption><div class=\"plot\">",
        escape(&words::metric(&rows[0].metric)),
        escape(&rows[0].unit)
    );
    let axis = Axis::of(&rows.iter().flat_map(|row| [row.min, row.max]).collect::<Vec<_>>());
    for row_ in rows {
        let samples = report.samples.iter();
        let mine = samples.filter(|s| s.arm == row_.arm && s.load == row_.load && s.metric == row_.metric);
        let dots: Vec<Dot> = mine
            .map(|s| Dot {
                value: s.value,
                title: format!(
                    "{} {}, boot {}, share of CPU {:.0} %",
                    words::number(s.value),
                    escape(&s.unit),
                    s.boot,
                    s.share * 100.0
                ),
                noisy: s.noisy,
            })
            .collect();
        let configuration = row_.load.split_once('@').map_or("", |(_, name)| name);
        let name = format!("{configuration} {}", row_.arm).trim().to_owned();
        let value = words::number(row_.median);
        let label = format!("{} {}, {}: median {value}", escape(&row_.load), escape(&row_.metric), escape(&row_.arm));
        row(&mut html, &name, &plot::strip(&axis, &dots, &label), &value, number_of(report, &row_.arm));
    }
    foot(&mut html, &axis, &plot::plain);
    html + "</div></figure>"
}

/// What the probes counted.
fn counted(report: &Report) -> String {
    let rows: Vec<&Row> = report.summary.iter().filter(|row| row.counted).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut html = "<section><h2>Counted on the host meanwhile</h2><div class=\"scroll\"><table><thead><tr><th>load<th>event<th>arm\
                    <th class=\"n\">median<th class=\"n\">min – max<th class=\"n\">to stock</tr></thead><tbody>"
        .to_owned();
    for row in rows {
        let ratio = row.ratio_to_stock.as_ref().map_or_else(String::new, |ratio| words::factor(ratio.median));
        let _ = write!(
            html,
            "<tr><td>{}<td>{} ({})<td>{}<td class=\"n\">{}<td class=\"n\">{} – {}<td class=\"n\">{ratio}</tr>",
            escape(&row.load),
            escape(&words::metric(&row.metric)),
            escape(&row.unit),
            escape(&row.arm),
            words::number(row.median),
            words::number(row.min),
            words::number(row.max)
        );
    }
    html + "</tbody></table></div></section>"
}

fn checks(report: &Report) -> String {
    let mut html = "<section><h2>Checks</h2><ul class=\"checks\">".to_owned();
    for check in &report.checks {
        let (class, word) = if check.ok { ("good", "holds") } else { ("bad", "FAILS") };
        let (name, detail) = (escape(&check.name), escape(&check.detail));
        let _ = write!(html, "<li class=\"{class}\"><b>{word}</b> {name}: {detail}</li>");
    }
    for failure in &report.failures {
        let text = format!("{} under {} (boot {}): {}", failure.load, failure.arm, failure.boot, failure.message);
        let _ = write!(html, "<li class=\"bad\"><b>FAILED</b> {}</li>", escape(&text));
    }
    html + "</ul></section>"
}

fn boots(report: &Report) -> String {
    if report.boots.losses.is_empty() {
        return String::new();
    }
    let arms = report.boots.by_arm.iter().map(|(arm, v)| format!("{arm}: {} lost in {} visits", v.lost, v.visits));
    let arms = arms.collect::<Vec<_>>().join("; ");
    let mut html = format!("<section><h2>Lost boots</h2><p>{}</p>", escape(&arms));
    for loss in &report.boots.losses {
        let _ = write!(
            html,
            "<details><summary>boot {}: {}</summary><pre>{}</pre></details>",
            loss.boot,
            escape(&loss.headline()),
            escape(&loss.console.join("\n"))
        );
    }
    html + "</section>"
}

fn every_sample(report: &Report) -> String {
    let mut html = "<section class=\"screen\"><details><summary>All samples as a table</summary><div class=\"scroll\"><table><thead>\
                    <tr><th>boot<th>round<th>arm<th>load<th>metric<th class=\"n\">value<th>unit<th class=\"n\">share of CPU\
                    </tr></thead><tbody>"
        .to_owned();
    for s in &report.samples {
        let _ = write!(
            html,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td class=\"n\">{}<td>{}<td class=\"n\">{:.0} %</tr>",
            s.boot,
            s.round,
            escape(&s.arm),
            escape(&s.load),
            escape(&s.metric),
            words::number(s.value),
            escape(&s.unit),
            s.share * 100.0
        );
    }
    html + "</tbody></table></div></details></section>"
}

/// One row of a plot: its name, the drawing, its figure; `series` chooses the colour.
fn row(html: &mut String, name: &str, svg: &str, value: &str, series: usize) {
    let _ = write!(
        html,
        "<div class=\"row s{series}\"><span class=\"name\">{}</span>{svg}<span class=\"value\">{}</span></div>",
        escape(name),
        escape(value)
    );
}

fn foot(html: &mut String, axis: &Axis, label: &dyn Fn(f64) -> String) {
    let _ = write!(
        html,
        "<div class=\"row foot\"><span class=\"name\"></span>{}<span class=\"value\"></span></div>",
        axis.foot(label)
    );
}

/// The colour of an arm: stock has its own, the others theirs in their order.
fn number_of(report: &Report, arm: &str) -> usize {
    let mut others = report.arms.iter().filter(|(name, _)| name != STOCK);
    others.position(|(name, _)| name == arm).map_or(0, |i| i % 7 + 1)
}
