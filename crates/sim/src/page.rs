//! Runs of a scenario as one HTML page: what each arm came to, and a window of each as a picture.

use std::fmt::Write as _;

use entrain_html::figure::{factor, number};
use entrain_html::plot::{self, Axis};
use entrain_html::{Page, escape};

use crate::report::{Outcome, Row};
use crate::trace::{Timeline, picture};
use crate::world::World;

/// What the page's style has beside the common ones.
const STYLE: &str = include_str!("page.css");

/// One arm's run.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The arm.
    pub name: String,
    /// What it came to.
    pub outcome: Outcome,
    /// A window of it.
    pub picture: String,
}

/// The recorded window of a world that has run, drawn.
pub fn drawn(world: &World, from: u64, until: u64) -> String {
    picture::draw(world, &Timeline::of(world.records(), until.min(world.now)), from, until.min(world.now))
}

/// The whole page. The first arm is the one that the others are compared with.
pub fn page(about: &str, shown: &[Shown]) -> String {
    let Some(first) = shown.first() else { return String::new() };
    let (name, seed) = (&first.outcome.scenario, first.outcome.seed);
    let style = format!("{}{}{}{STYLE}", entrain_html::STATES, plot::STYLE, picture::STYLE);
    let mut page = Page::new(&format!("{name}, simulated"), &style).section(&head(name, seed, about, shown));
    page = page.section(&throughput(shown)).section(&table(shown));
    for one in shown {
        page = page.section(&window(one));
    }
    page.finish()
}

fn head(name: &str, seed: u64, about: &str, shown: &[Shown]) -> String {
    let mut html = format!(
        "<header><h1>{}</h1><p>{}</p><p>Entrain's schedulers, as they ship, in a simulated kernel: seed {seed}, {:.1} s of \
         simulated time. <code>entrain-sim run {} --seed {seed}</code> gives the same to the last bit.</p>",
        escape(name),
        escape(about),
        shown[0].outcome.seconds,
        escape(name)
    );
    for one in shown {
        for note in &one.outcome.notes {
            let _ = write!(html, "<p class=\"note\">{}: {}</p>", escape(&one.name), escape(note));
        }
        for (rule, count) in &one.outcome.broken {
            let what = one.outcome.violations.iter().find(|violation| violation.rule == rule);
            let what = what.map_or("", |violation| violation.what.as_str());
            let (arm, rule) = (escape(&one.name), escape(rule));
            let _ = write!(html, "<p class=\"note\">{arm}: rule {rule} broken {count} times: {}</p>", escape(what));
        }
    }
    html + "</header>"
}

/// Rows of one name as one: their operations.
fn ops(outcome: &Outcome, name: &str) -> f64 {
    outcome.rows.iter().filter(|row| row.name == name).map(|row| row.ops).sum()
}

/// Operations to the first arm's, as bars.
fn throughput(shown: &[Shown]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for row in &shown[0].outcome.rows {
        if !names.contains(&row.name.as_str()) && ops(&shown[0].outcome, &row.name) > 0.0 {
            names.push(&row.name);
        }
    }
    if names.is_empty() || shown.len() < 2 {
        return String::new();
    }
    let ratio = |one: &Shown, name: &str| ops(&one.outcome, name) / ops(&shown[0].outcome, name);
    let all = names.iter().flat_map(|name| shown.iter().map(|one| ratio(one, name))).chain([0.0]);
    let axis = Axis::of(&all.collect::<Vec<_>>());
    let base = escape(&shown[0].name);
    let mut html = format!(
        "<section><h2>Operations</h2><p>Times those of {base}: a longer bar is better. The line is {base}.</p>\
         <div class=\"plot\">"
    );
    for name in names {
        let _ = write!(html, "<h3>{}</h3>", escape(name));
        for (series, one) in shown.iter().enumerate() {
            let value = factor(ratio(one, name));
            let label = format!("{} {}: {value}", escape(name), escape(&one.name));
            let bar = plot::bar(&axis, ratio(one, name), None, &label);
            let _ = write!(
                html,
                "<div class=\"row s{series}\"><span class=\"name\">{}</span>{bar}<span class=\"value\">{value}</span></div>",
                escape(&one.name)
            );
        }
    }
    html + "</div></section>"
}

fn table(shown: &[Shown]) -> String {
    let mut html =
        "<section><h2>Figures</h2><div class=\"scroll\"><table><thead><tr><th>tasks<th>arm<th class=\"n\">how many\
                    <th class=\"n\">operations/s<th class=\"n\">CPUs<th class=\"n\">longest wait, ms\
                    <th class=\"n\">wake-up p50, µs<th class=\"n\">p99<th class=\"n\">worst</tr></thead><tbody>"
            .to_owned();
    for at in 0..shown[0].outcome.rows.len() {
        for one in shown {
            let Row { name, tasks, ops, cpus, max_wait_ms, wake_us } = &one.outcome.rows[at];
            let wake = |part: usize| wake_us.map_or(String::new(), |wake| number(wake[part]));
            let _ = write!(
                html,
                "<tr><td>{}<td>{}<td class=\"n\">{tasks}<td class=\"n\">{}<td class=\"n\">{cpus:.3}<td class=\"n\">{}\
                 <td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}</tr>",
                escape(name),
                escape(&one.name),
                number(*ops),
                number(*max_wait_ms),
                wake(0),
                wake(1),
                wake(2)
            );
        }
    }
    html + "</tbody></table></div></section>"
}

fn window(one: &Shown) -> String {
    let outcome = &one.outcome;
    format!(
        "<section><h2>A window: {}</h2><p>{} switches of the host/s, {} directed yields/s; trace {}</p>{}<figure>{}</figure>\
         </section>",
        escape(&one.name),
        number(outcome.switches),
        number(outcome.yields),
        outcome.trace,
        picture::legend(),
        one.picture
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{self, Arm};

    #[test]
    fn the_page_shows_every_arm_with_its_window_and_asks_nobody() {
        let lock = scenario::named("lock").unwrap();
        let show = |name: &str| {
            let mut setup = lock.build(1, Arm::named(name).unwrap());
            setup.world.record(4_000_000, 6_000_000);
            setup.world.run(8_000_000);
            setup.world.set_name(crate::world::MachineId(1), crate::kernel::TaskId(0), "<b>");
            let outcome = Outcome::read("lock", Arm::STOCK, 1, &setup.world, &setup.measured);
            Shown { name: name.to_owned(), outcome, picture: drawn(&setup.world, 4_000_000, 6_000_000) }
        };
        let page = page(lock.about, &[show("stock"), show("both")]);
        assert_eq!(page.matches("class=\"picture\"").count(), 2);
        // Two pCPUs and two guests of four vCPUs in each.
        assert_eq!(page.matches(">pCPU ").count() + page.matches(">vCPU ").count(), 2 * (2 + 2 * 4));
        for class in ["running", "sibling", "ready", "halted"] {
            assert!(page.contains(&format!("<path class=\"{class}\"")), "{class}");
        }
        assert!(page.contains("guest 0 lock") && !page.contains("<b>"));
        let elsewhere = ["http:", "https:", "<script", "<link", "@import", "url("];
        assert!(elsewhere.iter().all(|word| !page.contains(word)), "one file, no network");
    }
}
