//! The README's chart: what an operation takes on a measured GPU, beside other implementations on the same machine.

use std::fmt::Write as _;

use super::markdown::three;
use super::schema::{DeviceReport, Report};

/// What is drawn, of f32: a title, codec, setting and operation. The setting of PowerSGD goes on with the matrix.
const GROUPS: [(&str, &str, &str, &str); 3] = [
    ("QSGD, 4 bits: encode", "QSGD", "4 bit / 512", "encode"),
    ("top-k, 1 %: select", "top-k", "1 %", "encode"),
    ("PowerSGD, rank 4: step", "PowerSGD", "rank 4,", "step with feedback"),
];
/// Elements of the gradient.
const ELEMENTS: usize = 1 << 24;

/// Pixels: of the picture, of the labels, and of the longest bar.
const WIDTH: u32 = 760;
const LABELS: u32 = 215;
const LONGEST: f64 = 450.0;
/// What takes so many times as long is left out: beside it the others could not be told apart.
const MOST: f64 = 10.0;
/// Pixels from one bar to the next, and of a bar.
const STEP: u32 = 22;
const BAR: u32 = 15;

/// A bar: whose it is, and its seconds.
type Bar = (String, f64);

/// The chart of the last report that has a GPU with others beside it; none without one.
pub(super) fn chart(reports: &[Report], counts: impl Fn(&DeviceReport) -> bool) -> Option<String> {
    let (report, device) = reports.iter().rev().find_map(|report| {
        let device = report.devices.iter().find(|d| d.backend == "cuda" && counts(d))?;
        (!report.peers.is_empty()).then_some((report, device))
    })?;
    let groups: Vec<(&str, Vec<Bar>)> =
        GROUPS.iter().map(|group| (group.0, bars(report, device, *group))).filter(|(_, bars)| bars.len() > 1).collect();
    let longest = groups.iter().flat_map(|(_, bars)| bars).map(|(_, seconds)| *seconds).fold(0.0, f64::max);
    if longest <= 0.0 {
        return None;
    }
    Some(draw(&groups, longest, report, device))
}

/// Gradwire's bar, and one of each other implementation: its first row, which does most of what ours does.
fn bars(report: &Report, device: &DeviceReport, (_, codec, setting, op): (&str, &str, &str, &str)) -> Vec<Bar> {
    let same = |c: &str, s: &str, o: &str, t: &str, n: usize| {
        c == codec && s.starts_with(setting) && o == op && t == "f32" && n == ELEMENTS
    };
    let own = device.rows.iter().find(|r| same(&r.codec, &r.setting, &r.op, &r.dtype, r.elements));
    let Some(own) = own else { return Vec::new() };
    let mut bars = vec![("Gradwire".to_owned(), own.seconds)];
    let others = report.peers.iter().filter(|r| same(&r.codec, &r.setting, &r.op, &r.dtype, r.elements));
    for peer in others {
        if peer.seconds < MOST * own.seconds && bars.iter().all(|(name, _)| *name != peer.peer) {
            bars.push((peer.peer.clone(), peer.seconds));
        }
    }
    bars[1..].sort_by(|a, b| a.1.total_cmp(&b.1));
    bars
}

fn draw(groups: &[(&str, Vec<Bar>)], longest: f64, report: &Report, device: &DeviceReport) -> String {
    let mut body = String::new();
    let mut y = 34;
    for (title, bars) in groups {
        y += STEP;
        let _ = writeln!(body, r#"<text x="12" y="{y}" font-weight="bold">{}</text>"#, escaped(title));
        for (name, seconds) in bars {
            y += STEP;
            // Beside a bar twenty times as long a short one is still to be seen.
            let width = (LONGEST * seconds / longest).max(2.0);
            let color = if name == "Gradwire" { "#0072b2" } else { "#999999" };
            let (label, top, end) = (LABELS - 8, y - BAR + 3, f64::from(LABELS) + width + 6.0);
            let _ = writeln!(body, r#"<text x="{label}" y="{y}" text-anchor="end">{}</text>"#, escaped(name));
            let _ =
                writeln!(body, r#"<rect x="{LABELS}" y="{top}" width="{width:.1}" height="{BAR}" fill="{color}"/>"#);
            let _ = writeln!(body, r#"<text x="{end:.1}" y="{y}">{} µs</text>"#, three(1e6 * seconds));
        }
        y += STEP / 2;
    }
    let date = report.date.split('T').next().unwrap_or_default();
    let (height, foot) = (y + 36, y + 22);
    let name = escaped(&device.name);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13" fill="#222222">
<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>
<text x="12" y="26" font-size="15">A gradient of 2^24 f32 on one {name}: shorter is faster</text>
{body}<text x="12" y="{foot}" font-size="11" fill="#666666">cargo xtask report, {date}, commit {}; each does what benches/results says beside it</text>
</svg>
"##,
        report.commit
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::schema::PeerRow;
    use super::super::schema::tests::{report, row};
    use super::*;

    fn peer(name: &str, seconds: f64) -> PeerRow {
        let (codec, setting, op, dtype) =
            ("QSGD".to_owned(), "4 bit / 512".to_owned(), "encode".to_owned(), "f32".to_owned());
        PeerRow { peer: name.to_owned(), codec, setting, op, dtype, elements: ELEMENTS, seconds, ..PeerRow::default() }
    }

    #[test]
    fn a_bar_is_as_long_as_its_time_and_others_stand_beside_ours() {
        let mut report = report();
        assert_eq!(chart(&[report.clone()], |_| true), None, "nothing beside it at this size");
        let mut own = row("QSGD", "encode", ELEMENTS);
        own.seconds = 1e-5;
        report.devices[0].rows = vec![own];
        report.peers = vec![
            peer("slow & steady", 4e-5),
            peer("slow & steady", 6e-5),
            peer("middling", 2e-5),
            peer("slowest", 2e-4),
        ];
        let text = chart(&[report.clone()], |_| true).unwrap();
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is not in {text}"));
        assert!(at(r#"width="112.5""#) < at(r#"width="225.0""#) && at(r#"width="225.0""#) < at(r#"width="450.0""#));
        assert!(at("slow &amp; steady") > at("middling") && text.contains("10.0 µs") && !text.contains("slowest"));
        assert_eq!(chart(&[report], |_| false), None, "of what does not count there is no chart");
    }
}
