//! The chart: accuracy over steps, and beside it over the bytes that a rank has sent.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::error::TrainError;
use super::training::{History, Point};

/// Pixels of the SVG without its legend; a PNG has twice as many in each direction.
const SIZE: (i32, i32) = (1160, 470);
/// Pixels of a row of the legend.
const ROW: i32 = 26;
/// The name under which the font is registered. A viewer of the SVG uses its own font of this name.
const FONT: &str = "sans-serif";
/// Colours that stay apart for readers with any colour vision (Okabe and Ito 2008).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    BLACK,
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const GREY: RGBColor = RGBColor(80, 80, 80);

/// Draws the chart, and makes the folder that it lies in.
pub(crate) fn draw(path: &Path, histories: &[History], ranks: u32) -> Result<(), TrainError> {
    let failed = |reason| TrainError::Plot { path: path.to_path_buf(), reason };
    register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT)
        .map_err(|_| failed("the font of the crate epaint_default_fonts could not be read".to_owned()))?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| failed(e.to_string()))?;
    }
    let places = legend(histories, 1).map_err(failed)?;
    let height = SIZE.1 + ROW * places.last().map_or(0, |(_, row)| row + 1);
    let size = |scale: i32| ((SIZE.0 * scale) as u32, (height * scale) as u32);
    let drawn = if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("png")) {
        paint(BitMapBackend::new(path, size(2)).into_drawing_area(), histories, ranks, 2)
    } else {
        paint(SVGBackend::new(path, size(1)).into_drawing_area(), histories, ranks, 1)
    };
    drawn.map_err(failed)
}

fn text<E: std::error::Error>(error: E) -> String {
    error.to_string()
}

/// Where the name of each codec is written: pixels from the left, and the row.
fn legend(histories: &[History], scale: i32) -> Result<Vec<(i32, i32)>, String> {
    let (mut x, mut row) = (0, 0);
    let mut places = Vec::with_capacity(histories.len());
    for history in histories {
        let (width, _) = (FONT, 17 * scale).into_font().box_size(&history.codec).map_err(text)?;
        let width = width as i32 + 70 * scale;
        if x > 0 && x + width > (SIZE.0 - 40) * scale {
            (x, row) = (0, row + 1);
        }
        places.push((x, row));
        x += width;
    }
    Ok(places)
}

/// Where on an axis a line is drawn, and what is written beside it.
type Tick = (f64, String);

/// What is drawn across.
#[derive(Clone, Copy, PartialEq)]
enum Across {
    Steps,
    /// By their logarithm.
    Bytes,
}

impl Across {
    fn title(self, histories: &[History]) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Bytes if histories.iter().all(|history| history.counted) => "bytes that each rank has sent",
            Self::Bytes => "bytes that each rank has handed over",
        }
    }

    /// Places from the left, of points that have one.
    fn of(self, point: &Point, counted: bool) -> Option<f64> {
        let bytes = if counted { point.sent } else { point.bytes };
        match self {
            Self::Steps => Some(point.step as f64),
            Self::Bytes => (bytes > 0.0).then(|| bytes.log10()),
        }
    }

    /// From the first to the last of what is drawn.
    fn range(self, histories: &[History], floor: f64) -> Range<f64> {
        let places = histories.iter().flat_map(|history| line(history, self, floor)).map(|(x, _)| x);
        let (least, most) = places.fold((f64::MAX, f64::MIN), |(least, most), at| (least.min(at), most.max(at)));
        match self {
            _ if least > most => 0.0..1.0,
            Self::Steps => 0.0..most.max(1.0) * 1.02,
            Self::Bytes => least - 0.1..most + 0.1,
        }
    }

    fn ticks(self, range: &Range<f64>) -> Vec<Tick> {
        match self {
            Self::Steps => {
                let apart = step(range.end / 8.0);
                (0..=8)
                    .map(|i| f64::from(i) * apart)
                    .filter(|at| *at <= range.end)
                    .map(|at| (at, at.to_string()))
                    .collect()
            }
            Self::Bytes => {
                let digits: &[f64] = if range.end - range.start < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let powers = range.start.floor() as i32..=range.end.ceil() as i32;
                let values = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
                let ticks = values.map(|value| (value.log10(), bytes(value)));
                ticks.filter(|(at, _)| range.contains(at)).collect()
            }
        }
    }
}

/// The next larger of 1, 2 and 5 times a power of ten, at least 1.
fn step(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| *step >= value).unwrap_or(10.0 * power)
}

/// Bytes as people write them.
fn bytes(value: f64) -> String {
    let (unit, name) =
        [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")].into_iter().find(|(u, _)| value >= 0.999 * u).unwrap_or((1.0, "B"));
    format!("{} {name}", (value / unit * 1e3).round() / 1e3)
}

/// The least accuracy that is drawn: below half of all digits there is nothing to compare, where all codecs end above.
fn floor(histories: &[History]) -> f64 {
    let ends = histories.iter().filter_map(|history| history.points.last());
    if ends.map(|point| point.accuracy).fold(1.0, f64::min) > 0.6 { 0.5 } else { 0.0 }
}

/// A line, cut off where it is below `floor`.
fn line(history: &History, across: Across, floor: f64) -> Vec<(f64, f64)> {
    let points: Vec<(f64, f64)> =
        history.points.iter().filter_map(|p| across.of(p, history.counted).map(|x| (x, p.accuracy))).collect();
    let Some(first) = points.iter().position(|(_, y)| *y >= floor) else { return Vec::new() };
    let mut drawn = Vec::with_capacity(points.len());
    if let Some((x, y)) = first.checked_sub(1).map(|before| points[before]) {
        let (to_x, to_y) = points[first];
        let part = (floor - y) / (to_y - y);
        drawn.push((x + part * (to_x - x), floor));
    }
    drawn.extend(points[first..].iter().map(|(x, y)| (*x, y.max(floor))));
    drawn
}

/// Where a line has marks: at its end, and elsewhere so far apart that it stays a line.
fn marks(path: &[(i32, i32)], series: usize, apart: i32) -> Vec<(i32, i32)> {
    let Some(end) = path.last() else { return Vec::new() };
    let mut marks = vec![*end];
    // Lines that run together have their marks at different places.
    let mut last = end.0 + (series % 4) as i32 * apart / 4;
    for at in path.iter().rev() {
        if last - at.0 >= apart {
            marks.push(*at);
            last = at.0;
        }
    }
    marks
}

/// What is drawn on, and how many pixels one of the SVG's is on it.
struct Canvas<DB: DrawingBackend> {
    root: DrawingArea<DB, Shift>,
    scale: i32,
}

fn paint<DB: DrawingBackend>(
    root: DrawingArea<DB, Shift>,
    histories: &[History],
    ranks: u32,
    scale: i32,
) -> Result<(), String> {
    root.fill(&WHITE).map_err(text)?;
    let canvas = Canvas { root, scale };
    let title = format!("Training on {ranks} ranks: accuracy on digits that were not learned from");
    canvas.write(&title, (24 * scale, 28 * scale), 24, BLACK, HPos::Left)?;
    let places = legend(histories, scale)?;
    for (series, (history, (x, row))) in histories.iter().zip(&places).enumerate() {
        let (x, y) = (24 * scale + x, (62 + ROW * row) * scale);
        canvas.stroke(series, vec![(x, y), (x + 28 * scale, y)])?;
        canvas.marker(series, (x + 14 * scale, y))?;
        canvas.write(&history.codec, (x + 38 * scale, y), 17, BLACK, HPos::Left)?;
    }
    let above = 56 + ROW * places.last().map_or(0, |(_, row)| row + 1);
    let (_, body) = canvas.root.split_vertically(above * scale);
    let (left, right) = body.split_horizontally(SIZE.0 / 2 * scale);
    Canvas { root: left, scale }.panel(histories, Across::Steps)?;
    Canvas { root: right, scale }.panel(histories, Across::Bytes)?;
    canvas.root.present().map_err(text)
}

impl<DB: DrawingBackend> Canvas<DB> {
    /// Writes a line of text whose left or right end, or middle, is at a pixel.
    fn write(&self, what: &str, at: (i32, i32), size: i32, color: RGBColor, side: HPos) -> Result<(), String> {
        let style = (FONT, size * self.scale).into_font().color(&color).pos(Pos::new(side, VPos::Center));
        self.root.draw_text(what, &style, at).map_err(text)
    }

    fn stroke(&self, series: usize, path: Vec<(i32, i32)>) -> Result<(), String> {
        let style = COLORS[series % COLORS.len()].stroke_width(2 * self.scale as u32);
        self.root.draw(&PathElement::new(path, style)).map_err(text)
    }

    /// A circle, a square, a triangle or a diamond, so that lines differ without colours too.
    fn marker(&self, series: usize, (x, y): (i32, i32)) -> Result<(), String> {
        let (style, r) = (COLORS[series % COLORS.len()].filled(), 5 * self.scale);
        let corners = match series % 4 {
            0 => return self.root.draw(&Circle::new((x, y), r, style)).map_err(text),
            1 => vec![(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)],
            2 => vec![(x, y - r), (x + r, y + r), (x - r, y + r)],
            _ => vec![(x, y - r), (x + r, y), (x, y + r), (x - r, y)],
        };
        self.root.draw(&Polygon::new(corners, style)).map_err(text)
    }

    fn panel(&self, histories: &[History], across: Across) -> Result<(), String> {
        let scale = self.scale;
        let (width, height) = self.root.dim_in_pixel();
        let [left, top, right, bottom] =
            [76 * scale, 14 * scale, width as i32 - 24 * scale, height as i32 - 64 * scale];
        let floor = floor(histories);
        let range = across.range(histories, floor);
        let place_x = |x: f64| left + ((x - range.start) / (range.end - range.start) * f64::from(right - left)) as i32;
        let place_y = |y: f64| bottom - ((y - floor) / (1.0 - floor) * f64::from(bottom - top)) as i32;
        let faint = BLACK.mix(0.12).stroke_width(scale as u32);
        for (x, label) in across.ticks(&range) {
            let x = place_x(x);
            self.root.draw(&PathElement::new(vec![(x, top), (x, bottom)], faint)).map_err(text)?;
            self.write(&label, (x, bottom + 16 * scale), 15, BLACK, HPos::Center)?;
        }
        for tenth in 0..=10 {
            let accuracy = f64::from(tenth) / 10.0;
            if accuracy >= floor {
                let y = place_y(accuracy);
                self.root.draw(&PathElement::new(vec![(left, y), (right, y)], faint)).map_err(text)?;
                self.write(&format!("{} %", 10 * tenth), (left - 8 * scale, y), 15, BLACK, HPos::Right)?;
            }
        }
        let axis =
            PathElement::new(vec![(left, top), (left, bottom), (right, bottom)], BLACK.stroke_width(scale as u32));
        self.root.draw(&axis).map_err(text)?;
        self.write(across.title(histories), ((left + right) / 2, bottom + 44 * scale), 17, GREY, HPos::Center)?;
        for (series, history) in histories.iter().enumerate() {
            let path: Vec<(i32, i32)> =
                line(history, across, floor).into_iter().map(|(x, y)| (place_x(x), place_y(y))).collect();
            let marked = marks(&path, series, 56 * scale);
            self.stroke(series, path)?;
            marked.into_iter().try_for_each(|at| self.marker(series, at))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(codec: &str, points: &[(usize, f64, f64)]) -> History {
        let point = |&(step, sent, accuracy)| Point { step, bytes: 1.0, sent, left: 0.0, accuracy, loss: 1.0 };
        let points = points.iter().map(point).collect();
        let codec = codec.to_owned();
        History { codec, points, whole: 1.0, ranks: 2, counted: true, far: false, hash: 0, told: Vec::new() }
    }

    #[test]
    fn ticks_are_what_people_write() {
        let labels = |across: Across, range| across.ticks(&range).into_iter().map(|(_, l)| l).collect::<Vec<_>>();
        assert_eq!(labels(Across::Steps, 0.0..673.0), ["0", "100", "200", "300", "400", "500", "600"]);
        assert_eq!(labels(Across::Steps, 0.0..3.1), ["0", "1", "2", "3"]);
        assert_eq!(labels(Across::Bytes, 2.9..4.4), ["1 kB", "2 kB", "5 kB", "10 kB", "20 kB"]);
        assert_eq!(labels(Across::Bytes, 5.5..9.1), ["1 MB", "10 MB", "100 MB", "1 GB"]);
    }

    #[test]
    fn a_line_begins_where_it_crosses_the_floor() {
        let history = history("x", &[(0, 0.0, 0.1), (10, 1e3, 0.3), (20, 1e4, 0.7), (30, 1e5, 0.4)]);
        assert_eq!(line(&history, Across::Steps, 0.5), [(15.0, 0.5), (20.0, 0.7), (30.0, 0.5)]);
        assert_eq!(line(&history, Across::Bytes, 0.0), [(3.0, 0.3), (4.0, 0.7), (5.0, 0.4)]);
        assert!(line(&history, Across::Steps, 0.8).is_empty());
    }

    #[test]
    fn marks_keep_apart() {
        let path: Vec<(i32, i32)> = (0..=20).map(|x| (x * 5, 0)).collect();
        assert_eq!(marks(&path, 0, 40), [(100, 0), (60, 0), (20, 0)]);
        assert_eq!(marks(&path, 1, 40), [(100, 0), (70, 0), (30, 0)]);
        assert!(marks(&[], 1, 40).is_empty());
    }

    #[test]
    fn charts_are_drawn_of_any_histories() {
        let folder = std::env::temp_dir().join(format!("gradwire-train-plot-{}", std::process::id()));
        let many: Vec<History> = (0..9)
            .map(|at| history(&format!("a codec of number {at} with a long name"), &[(0, 0.0, 0.1), (50, 1e4, 0.9)]))
            .collect();
        for histories in [&[][..], &many[..1], &many] {
            for extension in ["svg", "png"] {
                let path = folder.join(format!("a/chart{}.{extension}", histories.len()));
                draw(&path, histories, 4).unwrap();
                assert!(std::fs::metadata(path).unwrap().len() > 1000);
            }
        }
        let blocked = folder.join("a/chart1.svg/chart.svg");
        assert!(draw(&blocked, &many, 4).unwrap_err().to_string().contains("--plot"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
