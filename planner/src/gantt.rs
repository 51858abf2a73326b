//! A chart of when each task runs.

use std::fmt::Write;

use crate::error::PlanError;
use crate::graph::{Graph, Kind, Resource};

/// Width of the chart's bars in SVG units, and their place.
const WIDTH: f64 = 1000.0;
const LEFT: f64 = 90.0;
const ROW: f64 = 40.0;
const BAR: f64 = 28.0;
const TOP: f64 = 30.0;

/// The schedule of a graph as an SVG: a row per resource that has tasks, a bar per task that takes time.
///
/// Each bar has its task's name and times as a tooltip. The text is a whole document, the same for the same graph.
///
/// # Errors
///
/// As [`Graph::schedule`].
pub fn gantt(graph: &Graph) -> Result<String, PlanError> {
    let schedule = graph.schedule()?;
    let end = schedule.makespan();
    let scale = if end > 0.0 { WIDTH / end } else { 0.0 };
    let used = |resource: &Resource| graph.tasks().iter().any(|task| task.resource == *resource);
    let rows: Vec<Resource> = Resource::ALL.into_iter().filter(used).collect();
    let (width, height) = (LEFT + WIDTH + 20.0, TOP + ROW * rows.len() as f64 + 30.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut line = |text: std::fmt::Arguments<'_>| {
        // A String takes all that is written to it.
        let _ = svg.write_fmt(text);
        svg.push('\n');
    };
    for (row, resource) in rows.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        line(format_args!("<text x=\"8\" y=\"{}\">{}</text>", y + BAR * 0.65, label(*resource)));
        for (task, &(begin, end)) in graph.tasks().iter().zip(&schedule.spans) {
            if task.resource != *resource || end <= begin {
                continue;
            }
            line(format_args!(
                "<rect x=\"{:.3}\" y=\"{y}\" width=\"{:.3}\" height=\"{BAR}\" fill=\"{}\" stroke=\"white\" \
                 stroke-width=\"0.5\"><title>{}: {} to {}</title></rect>",
                LEFT + begin * scale,
                (end - begin) * scale,
                colour(task.kind),
                escaped(&task.name),
                time(begin),
                time(end),
            ));
        }
    }
    let y = TOP + ROW * rows.len() as f64 + 12.0;
    for quarter in 0..=4 {
        let share = f64::from(quarter) / 4.0;
        let x = LEFT + share * WIDTH;
        line(format_args!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", time(end * share)));
    }
    let kinds = KINDS.iter().filter(|kind| graph.tasks().iter().any(|task| task.kind == kind.0));
    for (index, (_, colour, name)) in kinds.enumerate() {
        let x = LEFT + 110.0 * index as f64;
        line(format_args!("<rect x=\"{x}\" y=\"8\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"));
        line(format_args!("<text x=\"{}\" y=\"18\">{name}</text>", x + 16.0));
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// Kinds with their colours and names, in the order of the legend. The colours are told apart by colour-blind readers
/// too (Okabe and Ito 2008).
const KINDS: [(Kind, &str, &str); 8] = [
    (Kind::Read, "#999999", "read"),
    (Kind::Copy, "#666666", "copy"),
    (Kind::Forward, "#56b4e9", "forward"),
    (Kind::Backward, "#0072b2", "backward"),
    (Kind::Encode, "#e69f00", "encode"),
    (Kind::Communicate, "#d55e00", "network"),
    (Kind::Decode, "#009e73", "decode"),
    (Kind::Update, "#cc79a7", "update"),
];

fn colour(kind: Kind) -> &'static str {
    KINDS.iter().find(|row| row.0 == kind).map_or("black", |row| row.1)
}

fn label(resource: Resource) -> &'static str {
    match resource {
        Resource::Input => "input",
        Resource::Compute => "compute",
        Resource::Network => "network",
        Resource::Decode => "decode",
    }
}

/// Seconds in the unit that reads best.
fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1.0e-3 => format!("{:.3} ms", s * 1.0e3),
        s => format!("{:.3} us", s * 1.0e6),
    }
}

fn escaped(text: &str) -> String {
    let plain = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // XML has no way to write the other control characters.
    plain.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
