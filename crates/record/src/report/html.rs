//! The report as one page.

use std::fmt::Write as _;

use entrain_html::{Page, escape};

use super::strip::{bar, strip};
use super::{limits, percent, time};
use crate::analysis::{Analysis, Culprit, State, Times, VcpuTime, VmTime};

const STYLE: &str = include_str!("page.css");
/// vCPUs of a VM that are drawn; the others are in the JSON.
const DRAWN: usize = 64;

/// The whole page.
pub(crate) fn render(analysis: &Analysis) -> String {
    Page::new("Where the VMs’ time went", &format!("{}{STYLE}", entrain_html::STATES))
        .section(&head(analysis))
        .section(&vms(analysis))
        .section(&timelines(analysis))
        .section(&culprits(analysis))
        .section(&waits(analysis))
        .section(&yields(analysis))
        .section(&counts(analysis))
        .finish()
}

fn head(analysis: &Analysis) -> String {
    let vcpus: usize = analysis.vms.iter().map(|vm| vm.vcpus.len()).sum();
    let mut html = format!(
        "<header><h1>Where the VMs’ time went</h1><dl><dt>recorded</dt><dd>{:.2} s, {} VMs, {vcpus} vCPUs on {} pCPUs, \
         {} events</dd><dt>host</dt><dd>Linux {} ({})</dd></dl>",
        analysis.span_ns as f64 / 1e9,
        analysis.vms.len(),
        analysis.pcpus,
        analysis.events,
        escape(&analysis.kernel),
        escape(&analysis.arch)
    );
    for limit in limits(analysis) {
        let _ = write!(html, "<p class=\"note\">{}</p>", escape(&limit));
    }
    html.push_str("<ul class=\"legend\">");
    for state in State::ALL {
        let _ =
            write!(html, "<li title=\"{}\"><i class=\"{}\"></i>{}</li>", meaning(state), state.key(), state.words());
    }
    html + "</ul></header>"
}

fn meaning(state: State) -> &'static str {
    match state {
        State::Running => "on a pCPU",
        State::Polling => "the guest has halted; its thread still polls for work on a pCPU",
        State::Sibling => "it spins, or gave its pCPU away while it spun: it needs another vCPU to run",
        State::Ready => "runnable, but not on a pCPU",
        State::Holder => "ready, and switched out inside a critical section of the guest's kernel",
        State::Halted => "nothing to do: waits for an interrupt or its VMM",
        State::Unknown => "the recording does not tell",
    }
}

/// Stacked bars, of each VM and each vCPU.
fn vms(analysis: &Analysis) -> String {
    let mut html =
        "<section><h2>Each VM and vCPU</h2><p>The whole width is the whole time of the recording.</p>".to_owned();
    if analysis.vms.is_empty() {
        html.push_str("<p>No VM was recorded.</p>");
    }
    for vm in &analysis.vms {
        let _ = write!(html, "<h3>{} <span class=\"dim\">pid {}</span></h3>", escape(&vm.name), vm.pid);
        html.push_str(&row("whole", "all vCPUs", &bar(&vm.times, &label(vm, None)), &value(&vm.times)));
        for vcpu in vm.vcpus.iter().take(DRAWN) {
            let drawing = bar(&vcpu.times, &label(vm, Some(vcpu)));
            html.push_str(&row("", &format!("vCPU {}", vcpu.id), &drawing, &value(&vcpu.times)));
        }
        if let Some(more) = vm.vcpus.len().checked_sub(DRAWN).filter(|more| *more > 0) {
            let _ = write!(html, "<p>{more} more vCPUs are not drawn; the table of counts has them.</p>");
        }
    }
    html + "</section>"
}

fn timelines(analysis: &Analysis) -> String {
    let mut html =
        "<section><h2>Over time</h2><p>Each column is a part of the recording; its colours are the shares of \
                    that part.</p>"
            .to_owned();
    for vm in &analysis.vms {
        let _ = write!(html, "<h3>{}</h3>", escape(&vm.name));
        for vcpu in vm.vcpus.iter().take(DRAWN) {
            let drawing = strip(&vcpu.segments, analysis.span_ns, &label(vm, Some(vcpu)));
            let wait = format!("longest wait {}", time(vcpu.longest_wait_ns));
            html.push_str(&row("", &format!("vCPU {}", vcpu.id), &drawing, &wait));
        }
        let _ = write!(
            html,
            "<div class=\"scale inset\"><span>0 s</span><span>{:.2} s</span></div>",
            analysis.span_ns as f64 / 1e9
        );
    }
    html + "</section>"
}

fn culprits(analysis: &Analysis) -> String {
    let mut html =
        "<section><h2>Who ran instead</h2><p>Who was on the pCPU that a ready vCPU waited for, and how long. The \
                    red part: while that vCPU held something others may need.</p>"
            .to_owned();
    if analysis.culprits.is_empty() {
        return html + "<p>Nobody: no vCPU waited.</p></section>";
    }
    table(&mut html, &analysis.culprits);
    if analysis.vms.len() > 1 {
        for vm in analysis.vms.iter().filter(|vm| !vm.culprits.is_empty()) {
            let _ = write!(html, "<details><summary>instead of {}</summary>", escape(&vm.name));
            table(&mut html, &vm.culprits);
            html.push_str("</details>");
        }
    }
    html + "</section>"
}

fn table(html: &mut String, culprits: &[Culprit]) {
    let most = culprits.first().map_or(1, |culprit| culprit.ns.max(1)) as f64;
    html.push_str(
        "<div class=\"scroll\"><table><thead><tr><th>who<th class=\"n\">time<th class=\"n\">waits<th></tr></thead><tbody>",
    );
    for culprit in culprits {
        let holder = culprit.holder_ns as f64 / most * 100.0;
        let _ = write!(
            html,
            "<tr><td class=\"wide\">{}<td class=\"n\">{}<td class=\"n\">{}<td><div class=\"meter\">\
             <span class=\"holder\" style=\"width:{holder:.1}%\"></span>\
             <span class=\"ready\" style=\"width:{:.1}%\"></span></div></tr>",
            escape(&culprit.who.name),
            time(culprit.ns),
            culprit.waits,
            culprit.ns as f64 / most * 100.0 - holder
        );
    }
    html.push_str("</tbody></table></div>");
}

fn waits(analysis: &Analysis) -> String {
    if analysis.longest_waits.is_empty() {
        return String::new();
    }
    let mut html =
        "<section><h2>Longest waits</h2><div class=\"scroll\"><table><thead><tr><th class=\"n\">waited<th>vCPU\
                    <th class=\"n\">at<th>why<th>pCPU<th>who ran</tr></thead><tbody>"
            .to_owned();
    for wait in &analysis.longest_waits {
        let ran: Vec<String> =
            wait.ran.iter().take(3).map(|(who, ns)| format!("{} {}", escape(&who.name), time(*ns))).collect();
        let _ = write!(
            html,
            "<tr><td class=\"n\">{}<td>{} {}<td class=\"n\">{:.3} s<td>{}<td>{}<td class=\"wide\">{}</tr>",
            time(wait.ns),
            escape(&wait.vm),
            wait.vcpu,
            wait.start_ns as f64 / 1e9,
            wait.reason.words(),
            wait.pcpu,
            ran.join(", ")
        );
    }
    html + "</tbody></table></div></section>"
}

fn yields(analysis: &Analysis) -> String {
    let all = || analysis.vms.iter().flat_map(|vm| vm.vcpus.iter().map(move |vcpu| (vm, vcpu)));
    if all().all(|(_, vcpu)| vcpu.yields.is_empty()) {
        return String::new();
    }
    let mut html =
        "<section><h2>Yields</h2><p>A vCPU that spins asks the scheduler, through KVM, to run another one.</p>\
                    <div class=\"scroll\"><table><thead><tr><th>from<th>to<th class=\"n\">asked\
                    <th class=\"n\">honoured</tr></thead><tbody>"
            .to_owned();
    for (vm, vcpu) in all() {
        for one in &vcpu.yields {
            let _ = write!(
                html,
                "<tr><td>{} {}<td>{}<td class=\"n\">{}<td class=\"n\">{}</tr>",
                escape(&vm.name),
                vcpu.id,
                escape(&one.to.name),
                one.count,
                one.honoured
            );
        }
    }
    html + "</tbody></table></div></section>"
}

fn counts(analysis: &Analysis) -> String {
    let mut html = "<section><h2>Counted</h2><div class=\"scroll\"><table><thead><tr><th>vCPU<th class=\"n\">wake-ups\
                    <th class=\"n\">preemptions<th class=\"n\">in critical sections<th class=\"n\">spins\
                    <th class=\"n\">gave way<th class=\"n\">moved while waiting</tr></thead><tbody>"
        .to_owned();
    for vm in &analysis.vms {
        for vcpu in &vm.vcpus {
            let critical = match vcpu.preemptions_known {
                0 => "not known".to_owned(),
                known => format!("{} of {known}", vcpu.preemptions_cs),
            };
            let _ = write!(
                html,
                "<tr><td>{} {}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{critical}<td class=\"n\">{}\
                 <td class=\"n\">{}<td class=\"n\">{}</tr>",
                escape(&vm.name),
                vcpu.id,
                vcpu.wakeups,
                vcpu.preemptions,
                vcpu.spins,
                vcpu.gave_way,
                vcpu.migrations
            );
        }
    }
    html + "</tbody></table></div></section>"
}

/// One line of drawings.
fn row(class: &str, name: &str, svg: &str, value: &str) -> String {
    format!(
        "<div class=\"row {class}\"><span>{}</span>{svg}<span class=\"value\">{}</span></div>",
        escape(name),
        escape(value)
    )
}

/// What stands beside a bar.
fn value(times: &Times) -> String {
    let waited = times.share(State::Ready) + times.share(State::Holder);
    format!("runs {} %, ready {} %", percent(times.share(State::Running)), percent(waited))
}

/// What a drawing says, for those who do not see it.
fn label(vm: &VmTime, vcpu: Option<&VcpuTime>) -> String {
    let (name, times) = match vcpu {
        Some(vcpu) => (format!("vCPU {} of {}", vcpu.id, vm.name), &vcpu.times),
        None => (vm.name.clone(), &vm.times),
    };
    let known = State::ALL.into_iter().filter(|state| times.of(*state) > 0);
    let shares: Vec<String> =
        known.map(|state| format!("{} {} %", state.words(), percent(times.share(state)))).collect();
    escape(&format!("{name}: {}", shares.join(", "))).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::tests::recording;

    #[test]
    fn the_page_shows_everything_and_no_name_becomes_markup() {
        let mut recording = recording();
        recording.vms[0].name = "<b>\"&".into();
        let page = render(&Analysis::of(&recording));
        assert!(page.contains("&lt;b&gt;&quot;&amp;") && !page.contains("<b>"));
        assert_eq!(page.matches("class=\"strip\"").count(), 2);
        assert!(page.contains("db vCPU 0") && page.contains("preempted in a critical section"));
        let elsewhere = ["http:", "https:", "<script", "<link", "@import", "url("];
        assert!(elsewhere.iter().all(|word| !page.contains(word)), "one file, no network");
    }
}
