//! The chart: encode rate against error, a series a codec, as SVG and PNG.

use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::labels::{Area, Point, place};
use super::report::Report;
use super::schema::{Parameters, Row};
use super::table::ratio;
use crate::jobs::list::bucket_text;

/// Pixels of the SVG; the PNG has twice as many in each direction, so that it stays sharp when it is scaled.
const SIZE: (u32, u32) = (1200, 800);
/// Pixels between two lines of the legend.
const LINE: i32 = 22;
/// The name under which the font is registered. A viewer of the SVG uses its own font of this name.
pub(super) const FONT: &str = "sans-serif";
/// Errors below this are drawn at it: the axis is logarithmic, and an exact result has no place there.
const LEAST_ERROR: f64 = 1e-8;
/// Colours that stay apart for readers with any colour vision (Okabe and Ito 2008), in the order of the series.
pub(super) const COLORS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    BLACK,
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    // Not theirs, which is a yellow that white swallows.
    RGBColor(150, 150, 150),
];

pub(super) const GREY: RGBColor = RGBColor(80, 80, 80);

/// A series' colour, and which of four shapes its marks have: no two series of 32 have both in common.
pub(super) fn look(series: usize) -> (RGBColor, usize) {
    (COLORS[series % COLORS.len()], (series + series / COLORS.len()) % 4)
}

/// A series' colour, dark enough for thin letters.
pub(super) fn dark(series: usize) -> RGBColor {
    let (RGBColor(r, g, b), _) = look(series);
    RGBColor(r / 5 * 3, g / 5 * 3, b / 5 * 3)
}

/// Draws `stem`.svg and `stem`.png.
pub(crate) fn draw(stem: &Path, report: &Report) -> Result<[PathBuf; 2], String> {
    let [svg, png] = prepare(stem)?;
    paint(SVGBackend::new(&svg, SIZE).into_drawing_area(), report, 1).map_err(|e| failed(&svg, e))?;
    let large = (SIZE.0 * 2, SIZE.1 * 2);
    paint(BitMapBackend::new(&png, large).into_drawing_area(), report, 2).map_err(|e| failed(&png, e))?;
    Ok([svg, png])
}

/// The files of a chart, once its font is there.
pub(super) fn prepare(stem: &Path) -> Result<[PathBuf; 2], String> {
    register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT)
        .map_err(|_| "the chart's font could not be read; check the crate epaint_default_fonts".to_owned())?;
    Ok(files(stem))
}

/// The files of a chart.
pub(super) fn files(stem: &Path) -> [PathBuf; 2] {
    // The extension is appended, since a stem may have a dot of its own.
    ["svg", "png"].map(|extension| {
        let mut path = stem.as_os_str().to_owned();
        path.push(".");
        path.push(extension);
        PathBuf::from(path)
    })
}

/// What to say of a chart that could not be drawn.
pub(super) fn failed(path: &Path, e: String) -> String {
    format!("{} could not be drawn: {e}; name another with --chart", path.display())
}

/// A canvas, and how many pixels one of the SVG's is on it.
pub(super) struct Canvas<DB: DrawingBackend> {
    pub(super) root: DrawingArea<DB, Shift>,
    pub(super) scale: i32,
}

pub(super) fn text<E: std::error::Error>(error: E) -> String {
    error.to_string()
}

fn paint<DB: DrawingBackend>(root: DrawingArea<DB, Shift>, report: &Report, scale: i32) -> Result<(), String> {
    let canvas = Canvas { root, scale };
    canvas.root.fill(&WHITE).map_err(text)?;
    let (_, body) = canvas.root.split_vertically(canvas.heading(report)?);
    let (across, up) = ranges(&report.rows);
    let ticks = ticks(&up, 3);
    let mut chart = ChartBuilder::on(&body)
        .margin_left(16 * scale)
        .margin_right(24 * scale)
        .margin_bottom(10 * scale)
        .x_label_area_size(50 * scale)
        .y_label_area_size(84 * scale)
        .build_cartesian_2d(across, up.log_scale().with_key_points(ticks))
        .map_err(text)?;
    chart
        .configure_mesh()
        .x_desc("encode rate, GB/s of gradient; of PowerSGD: a step with feedback, decoded")
        .y_desc("relative error |decoded - gradient| / |gradient|")
        .label_style((FONT, 16 * scale))
        .axis_desc_style((FONT, 18 * scale))
        .x_label_formatter(&|v| plain(*v))
        .y_label_formatter(&|v| if *v < 1e-2 { format!("{v:.0e}") } else { format!("{v}") })
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(BLACK.mix(0.12))
        .draw()
        .map_err(text)?;
    let at: Vec<(i32, i32)> =
        report.rows.iter().map(|r| chart.backend_coord(&(r.rate(), r.relative_error.max(LEAST_ERROR)))).collect();
    let (x, y) = chart.plotting_area().get_pixel_range();
    canvas.lines(&report.rows, &at)?;
    canvas.points(&report.rows, &at, Area([x.start, y.start, x.end, y.end]))?;
    canvas.root.present().map_err(text)
}

/// A number without decimals that say nothing.
fn plain(value: f64) -> String {
    format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The axes: rates from zero with room for the last label, errors with room above and below.
fn ranges(rows: &[Row]) -> (Range<f64>, Range<f64>) {
    let fastest = rows.iter().map(Row::rate).fold(0.0, f64::max);
    let errors = || rows.iter().map(|r| r.relative_error.max(LEAST_ERROR));
    let (least, most) = (errors().fold(1.0, f64::min), errors().fold(LEAST_ERROR, f64::max));
    (0.0..fastest.max(1e-9) * 1.15, least / 2.0..most * 2.0)
}

/// Where a logarithmic axis has its lines: at powers of ten; or at 1, 2 and 5 times those, and ever closer, where a
/// range has fewer than `least` lines else.
pub(super) fn ticks(range: &Range<f64>, least: usize) -> Vec<f64> {
    let tenths: Vec<u32> = (10..100).collect();
    let each = |step: usize| tenths.iter().copied().step_by(step).collect::<Vec<u32>>();
    let mut found = Vec::new();
    for digits in [vec![10], vec![10, 20, 50], each(10), each(5), tenths.clone()] {
        let powers = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
        // Read as a text, so that 0.3 is the number nearest to it, and has no tail.
        let value = |power: i32, tenth: u32| format!("{tenth}e{}", power - 1).parse().unwrap_or(f64::NAN);
        let all = powers.flat_map(|power| digits.iter().map(move |tenth| value(power, *tenth)));
        found = all.filter(|value| range.contains(value)).collect();
        if found.len() >= least {
            break;
        }
    }
    found
}

/// Which series a row is in: families in the order of the rows.
fn families(rows: &[Row]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.codec.as_str()) {
            names.push(&row.codec);
        }
    }
    names
}

/// A marker grows with the compression ratio.
fn radius(ratio: f64) -> i32 {
    (3.0 + 1.1 * ratio.max(1.0).log2()) as i32
}

impl<DB: DrawingBackend> Canvas<DB> {
    /// Writes a line of text whose left end has its middle at a pixel of this canvas.
    pub(super) fn write(&self, what: &str, at: (i32, i32), size: i32, color: RGBColor) -> Result<(), String> {
        let style = (FONT, size * self.scale).into_font().color(&color).pos(Pos::new(HPos::Left, VPos::Center));
        self.root.draw_text(what, &style, at).map_err(text)
    }

    /// Width of a text in pixels of this canvas.
    pub(super) fn width(&self, what: &str, size: i32) -> Result<i32, String> {
        let (width, _) = (FONT, size * self.scale).into_font().box_size(what).map_err(text)?;
        Ok(width as i32)
    }

    /// Title, what was measured, and the legend; and where it all ends.
    fn heading(&self, report: &Report) -> Result<i32, String> {
        let scaled = |x, y| (x * self.scale, y * self.scale);
        let title = "Gradient compression: encode rate against error";
        self.write(title, scaled(24, 26), 26, BLACK)?;
        let beside = (24 * self.scale + self.width(title, 26)? + 46 * self.scale, 28 * self.scale);
        self.write("labels: setting, ratio; larger marks compress more", beside, 16, GREY)?;
        let device = format!("{}; its copy rate: {:.1} GB/s read plus written", report.device, report.copy_gbps);
        self.write(&device, scaled(24, 54), 16, GREY)?;
        Ok(self.legend(&families(&report.rows), scaled(24, 82))? + LINE * self.scale)
    }

    /// The series' marks and names in lines from a pixel on, and where the last line is.
    fn legend(&self, names: &[&str], (left, mut y): (i32, i32)) -> Result<i32, String> {
        let mut x = left;
        for (index, name) in names.iter().enumerate() {
            let wide = 18 * self.scale + self.width(name, 18)?;
            if x > left && x + wide > (SIZE.0 as i32 - 24) * self.scale {
                (x, y) = (left, y + LINE * self.scale);
            }
            self.marker(index, (x + 6 * self.scale, y), 6 * self.scale)?;
            self.write(name, (x + 18 * self.scale, y), 18, dark(index))?;
            x += wide + 28 * self.scale;
        }
        Ok(y)
    }

    /// A circle, a square, a triangle or a diamond, so that series differ without colours too.
    pub(super) fn marker(&self, series: usize, (x, y): (i32, i32), r: i32) -> Result<(), String> {
        let (color, shape) = look(series);
        let style = color.filled();
        let corners = match shape {
            0 => return self.root.draw(&Circle::new((x, y), r, style)).map_err(text),
            1 => vec![(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)],
            2 => vec![(x, y - r), (x + r, y + r), (x - r, y + r)],
            _ => vec![(x, y - r), (x + r, y), (x, y + r), (x - r, y)],
        };
        self.root.draw(&Polygon::new(corners, style)).map_err(text)
    }

    /// Joins the settings of a series, from few bits to many, but for a bucket that is the whole tensor.
    fn lines(&self, rows: &[Row], at: &[(i32, i32)]) -> Result<(), String> {
        for (index, name) in families(rows).into_iter().enumerate() {
            let joined = rows.iter().zip(at).filter(|(r, _)| r.codec == name && !r.is_whole());
            let style = look(index).0.mix(0.35).stroke_width(self.scale as u32);
            let path: Vec<(i32, i32)> = joined.map(|(_, at)| *at).collect();
            self.root.draw(&PathElement::new(path, style)).map_err(text)?;
        }
        Ok(())
    }

    fn points(&self, rows: &[Row], at: &[(i32, i32)], frame: Area) -> Result<(), String> {
        let names = families(rows);
        let mut points = Vec::new();
        let mut labels = Vec::new();
        for (row, at) in rows.iter().zip(at) {
            let setting = match &row.settings.of {
                Parameters::Buckets { bits, bucket, .. } => format!("{bits}/{}", bucket_text(*bucket)),
                _ => row.settings.label.clone(),
            };
            let label = format!("{setting}, {}×", ratio(row.ratio));
            let label_size = (self.width(&label, 15)? + 2 * self.scale, 14 * self.scale);
            points.push(Point { at: *at, radius: radius(row.ratio) * self.scale, label: label_size });
            labels.push(label);
        }
        for ((row, point), (label, area)) in rows.iter().zip(&points).zip(labels.iter().zip(place(&points, frame))) {
            let series = names.iter().position(|name| *name == row.codec).unwrap_or(0);
            let (color, _) = look(series);
            let Area([left, top, right, bottom]) = area;
            let (x, y) = point.at;
            let nearest = (x.clamp(left, right), y.clamp(top, bottom));
            if (nearest.0 - x).abs().max((nearest.1 - y).abs()) > point.radius + 8 * self.scale {
                let leader = PathElement::new(vec![point.at, nearest], color.mix(0.5).stroke_width(self.scale as u32));
                self.root.draw(&leader).map_err(text)?;
            }
            // Lines of other series pass behind the label and leave it readable.
            self.root.draw(&Rectangle::new([(left, top), (right, bottom)], WHITE.mix(0.75).filled())).map_err(text)?;
            self.write(label, (left, (top + bottom) / 2), 15, dark(series))?;
        }
        // Markers last: nothing covers a measurement.
        for (row, point) in rows.iter().zip(&points) {
            let series = names.iter().position(|name| *name == row.codec).unwrap_or(0);
            self.marker(series, point.at, point.radius)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::report::tests::{report, row, step, top_k};
    use super::*;
    use crate::jobs::list::{self, Entry};

    #[test]
    fn every_series_has_its_colour_and_its_place_in_the_legend() {
        let mut names: Vec<&str> = list::all().iter().map(Entry::series).collect();
        names.dedup();
        let looks: BTreeSet<_> = (0..names.len()).map(|series| (series % COLORS.len(), look(series).1)).collect();
        assert_eq!(looks.len(), names.len(), "{names:?}");
        prepare(Path::new("none")).unwrap();
        let mut drawn = String::new();
        let canvas = Canvas { root: SVGBackend::with_string(&mut drawn, SIZE).into_drawing_area(), scale: 1 };
        // The chart below keeps the most of the height.
        assert!(canvas.legend(&names, (24, 82)).unwrap() <= SIZE.1 as i32 / 4);
    }

    #[test]
    fn an_axis_has_lines_enough_whatever_its_range() {
        assert_eq!(ticks(&(1e-5..0.5), 3), [1e-5, 1e-4, 1e-3, 1e-2, 0.1]);
        assert_eq!(ticks(&(0.02..0.9), 3), [0.02, 0.05, 0.1, 0.2, 0.5]);
        // All errors of one decade, and the least range that there is: half of an error to twice of it.
        assert_eq!(ticks(&(0.15..0.9), 3), [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8][..].to_vec());
        assert_eq!(ticks(&(0.32..0.36), 3), [0.32, 0.33, 0.34, 0.35]);
        for start in 1..1000 {
            let start = 1e-3 * f64::from(start);
            let found = ticks(&(start..4.0 * start), 3).len();
            assert!((3..=9).contains(&found), "{found} from {start} on");
        }
    }

    #[test]
    fn a_chart_of_one_decade_has_several_labels() {
        let folder = std::env::temp_dir().join(format!("gradwire-decade-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let rows = [0.12, 0.2].map(|relative_error| Row { relative_error, ..row("uniform", 8, None) });
        let [svg, _] = draw(&folder.join("one"), &report(rows.to_vec())).unwrap();
        let drawn = std::fs::read_to_string(svg).unwrap();
        let texts: Vec<&str> = drawn.lines().map(str::trim).collect();
        for label in ["0.1", "0.2", "0.3"] {
            assert!(texts.contains(&label), "{label} is missing: {texts:?}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_chart_is_drawn_for_any_rows() {
        let folder = std::env::temp_dir().join(format!("gradwire-chart-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let exact = Row { relative_error: 0.0, ..row("uniform", 8, None) };
        for (name, rows) in [("none", vec![]), ("v1.0", vec![row("QSGD max", 2, Some(128)), exact, top_k(), step()])] {
            let [svg, png] = draw(&folder.join(name), &report(rows)).unwrap();
            assert!(svg.ends_with(format!("{name}.svg")) && png.ends_with(format!("{name}.png")));
            let drawn = std::fs::read_to_string(svg).unwrap();
            for label in ["2/128, 31.99×", "1 %, 31.99×", "rank 32, 31.99×"] {
                assert_eq!(drawn.contains(label), name == "v1.0", "{label}");
            }
            assert!(std::fs::read(png).unwrap().starts_with(b"\x89PNG"));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
