//! The chart of the study: what four bits gain, by network, link and GPU.

use std::fmt::Write as _;

use super::cells::{gains, networks};
use super::machines::{GPUS, LINKS};

/// Workers, and which of the codecs: QSGD with 4 bits.
const WORKERS: u32 = 8;
const CODEC: usize = 3;

const WIDTH: f64 = 960.0;
const PANEL: f64 = 250.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 70.0;
const GAP: f64 = 70.0;
/// The gains at both ends of an axis, which is logarithmic.
const LEAST: f64 = 0.5;
const MOST: f64 = 16.0;
/// A color per GPU, which differ in lightness too.
const COLORS: [&str; 3] = ["#9ecae1", "#3182bd", "#08306b"];

/// How far above the bottom of a panel a gain is.
fn height(gain: f64) -> f64 {
    PANEL * (gain.clamp(LEAST, MOST) / LEAST).log2() / (MOST / LEAST).log2()
}

/// The chart, as SVG.
pub(super) fn chart() -> Result<String, String> {
    let total = TOP + LINKS.len() as f64 * (PANEL + GAP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {total}\" font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"{WIDTH}\" height=\"{total}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"17\">QSGD with 4 bits over 32 bits: how many times as fast an iteration is, {WORKERS} workers</text>\n"
    );
    // Writing into a string does not fail.
    for (k, gpu) in GPUS.iter().enumerate() {
        let x = LEFT + 220.0 * k as f64;
        let _ = writeln!(svg, "<rect x=\"{x}\" y=\"38\" width=\"14\" height=\"14\" fill=\"{}\"/>", COLORS[k]);
        let _ = writeln!(svg, "<text x=\"{}\" y=\"50\">{}</text>", x + 20.0, gpu.name);
    }
    let networks = networks();
    let group = (WIDTH - LEFT - 20.0) / networks.len() as f64;
    for (panel, link) in LINKS.iter().enumerate() {
        let bottom = TOP + PANEL + panel as f64 * (PANEL + GAP);
        for gain in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0] {
            let y = bottom - height(gain);
            let stroke = if gain == 1.0 { "#444" } else { "#ddd" };
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\" stroke=\"{stroke}\"/>",
                WIDTH - 20.0
            );
            let _ = writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{gain}</text>", LEFT - 8.0, y + 5.0);
        }
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - 24.0,
            bottom - PANEL + 20.0,
            link.name
        );
        for (n, network) in networks.iter().enumerate() {
            let left = LEFT + group * n as f64;
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                left + group / 2.0,
                bottom + 20.0,
                network.name
            );
            for (k, gpu) in GPUS.iter().enumerate() {
                let [gain, _] = gains(gpu, link, network, WORKERS)?[CODEC];
                let (bar, from) = (group * 0.26, height(1.0));
                let (x, tall) = (left + group * 0.1 + bar * k as f64, height(gain) - from);
                let y = bottom - from - tall.max(0.0);
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                    bar - 3.0,
                    tall.abs().max(1.0),
                    COLORS[k]
                );
                let above = if tall < 0.0 { y + tall.abs() + 14.0 } else { y - 4.0 };
                let middle = x + bar / 2.0 - 1.5;
                let _ = writeln!(
                    svg,
                    "<text x=\"{middle:.1}\" y=\"{above:.1}\" font-size=\"11\" text-anchor=\"middle\">{gain:.1}</text>"
                );
            }
        }
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}
