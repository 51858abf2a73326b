//! The chart of `trade.rs`: energy captured above, relative error below, against bytes, a column a captured gradient.

use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::{COLORS, Canvas, FONT, GREY, dark, failed, prepare, text, ticks};
use super::labels::{Area, Point, place};
use super::schema::Traded;
use super::trade::{NAMED, SERIES};

/// Pixels of the SVG for each gradient, and beside them; the PNG has twice as many.
const PANEL: (u32, u32) = (520, 400);
const BESIDE: (u32, u32) = (60, 110);
/// Columns that are drawn.
const MOST: usize = 4;

/// Draws `stem`.svg and `stem`.png.
pub(super) fn draw(stem: &Path, rows: &[Traded]) -> Result<[PathBuf; 2], String> {
    let [svg, png] = prepare(stem)?;
    let columns = gradients(rows).len() as u32;
    let size = (BESIDE.0 + columns * PANEL.0, BESIDE.1 + 2 * PANEL.1);
    paint(SVGBackend::new(&svg, size).into_drawing_area(), rows, 1).map_err(|e| failed(&svg, e))?;
    let large = (size.0 * 2, size.1 * 2);
    paint(BitMapBackend::new(&png, large).into_drawing_area(), rows, 2).map_err(|e| failed(&png, e))?;
    Ok([svg, png])
}

fn gradients(rows: &[Traded]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.gradient.as_str()) {
            names.push(&row.gradient);
        }
    }
    names.truncate(MOST);
    names
}

/// Where on an axis a line is drawn, and what is written beside it.
type Tick = (f64, String);

/// What is drawn upwards.
#[derive(Clone, Copy, PartialEq)]
enum Up {
    Energy,
    Error,
}

impl Up {
    fn of(self, row: &Traded) -> f64 {
        match self {
            Self::Energy => row.energy,
            Self::Error => row.relative_error.max(1e-8).log10(),
        }
    }

    /// Where lines are drawn across, with what is written beside them.
    fn ticks(self, range: &Range<f64>) -> Vec<Tick> {
        match self {
            Self::Energy => (0..=5).map(|i| (0.2 * f64::from(i), format!("{} %", 20 * i))).collect(),
            Self::Error => decades(range),
        }
    }
}

/// Lines of an axis whose range is of logarithms.
fn decades(range: &Range<f64>) -> Vec<Tick> {
    let values = ticks(&(10f64.powf(range.start)..10f64.powf(range.end)), 3);
    values.into_iter().map(|value| (value.log10(), format!("{value}"))).collect()
}

fn range(values: impl Iterator<Item = f64>, room: f64) -> Range<f64> {
    let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), v| (least.min(v), most.max(v)));
    if least > most { 0.0..1.0 } else { least - room..most + room }
}

/// Kilobytes, by their logarithm.
fn across(row: &Traded) -> f64 {
    (row.bytes as f64 / 1e3).log10()
}

fn paint<DB: DrawingBackend>(root: DrawingArea<DB, Shift>, rows: &[Traded], scale: i32) -> Result<(), String> {
    root.fill(&WHITE).map_err(text)?;
    let canvas = Canvas { root, scale };
    heading(&canvas, rows)?;
    let (_, body) = canvas.root.split_vertically(BESIDE.1 as i32 * scale);
    let (_, body) = body.split_horizontally(BESIDE.0 as i32 * scale);
    let names = gradients(rows);
    let panels = body.split_evenly((2, names.len().max(1)));
    let x = range(rows.iter().map(across), 0.06);
    let error = range(rows.iter().map(|row| Up::Error.of(row)), 0.08);
    for (at, panel) in panels.into_iter().enumerate() {
        let Some(name) = names.get(at % names.len().max(1)) else { continue };
        let (up, y) = if at < names.len() { (Up::Energy, -0.02..1.04) } else { (Up::Error, error.clone()) };
        let mine: Vec<&Traded> = rows.iter().filter(|row| row.gradient == *name).collect();
        let canvas = Canvas { root: panel, scale };
        canvas.panel(&mine, name, up, (x.clone(), y), at.is_multiple_of(names.len()))?;
    }
    canvas.root.present().map_err(text)
}

/// Title and legend.
fn heading<DB: DrawingBackend>(canvas: &Canvas<DB>, rows: &[Traded]) -> Result<(), String> {
    let scale = canvas.scale;
    canvas.write("What is left of a gradient for the bytes sent", (24 * scale, 28 * scale), 26, BLACK)?;
    let whole = rows.first().map_or(0.0, |row| row.bytes as f64 * row.ratio / 1e3);
    let (mut x, y) = (24 * scale, 60 * scale);
    for (series, name) in SERIES.into_iter().enumerate() {
        canvas.marker(series, (x + 6 * scale, y), 6 * scale)?;
        canvas.write(name, (x + 18 * scale, y), 18, dark(series))?;
        x += canvas.width(name, 18)? + 46 * scale;
    }
    let what = format!(
        "a gradient in f32 has {whole:.0} kB; labels: PowerSGD's rank, QSGD's bits; top-k has each rank's bytes; 10th step: of \
         the same gradient; matrices that a rank would not halve are sent whole"
    );
    canvas.write(&what, (24 * scale, 88 * scale), 16, GREY)
}

impl<DB: DrawingBackend> Canvas<DB> {
    fn panel(
        &self,
        rows: &[&Traded],
        name: &str,
        up: Up,
        (x, y): (Range<f64>, Range<f64>),
        first: bool,
    ) -> Result<(), String> {
        let scale = self.scale;
        let chart = ChartBuilder::on(&self.root)
            .margin_left(64 * scale)
            .margin_right(8 * scale)
            .margin_top(34 * scale)
            .margin_bottom(if up == Up::Energy { 30 } else { 58 } * scale)
            .build_cartesian_2d(x.clone(), y.clone())
            .map_err(text)?;
        let (px, py) = chart.plotting_area().get_pixel_range();
        // Pixels of the drawing area are counted from the canvas's corner, and drawn from the panel's.
        let corner = self.root.get_base_pixel();
        let at = |x: f64, y: f64| {
            let (x, y) = chart.backend_coord(&(x, y));
            (x - corner.0, y - corner.1)
        };
        let frame = Area([px.start - corner.0, py.start - corner.1, px.end - corner.0, py.end - corner.1]);
        self.axes(frame, &at, (decades(&x), up.ticks(&y)))?;
        let Area([left, top, right, bottom]) = frame;
        let style = |size: i32, color: RGBColor| (FONT, size * scale).into_font().color(&color);
        let centred = |size, color| style(size, color).pos(Pos::new(HPos::Center, VPos::Center));
        if up == Up::Energy {
            self.root.draw_text(name, &centred(20, BLACK), ((left + right) / 2, top - 18 * scale)).map_err(text)?;
        } else {
            let below = ((left + right) / 2, bottom + 42 * scale);
            self.root.draw_text("kilobytes sent", &centred(17, BLACK), below).map_err(text)?;
        }
        if first {
            let what = if up == Up::Energy { "energy captured" } else { "relative error" };
            let upright = centred(17, BLACK).transform(FontTransform::Rotate270);
            self.root.draw_text(what, &upright, (left - 62 * scale, (top + bottom) / 2)).map_err(text)?;
        }
        self.series(rows, up, &at, frame)
    }

    /// Lines across and up, and what they stand for.
    fn axes(
        &self,
        Area([left, top, right, bottom]): Area,
        at: &impl Fn(f64, f64) -> (i32, i32),
        (across, up): (Vec<Tick>, Vec<Tick>),
    ) -> Result<(), String> {
        let scale = self.scale;
        let faint = BLACK.mix(0.12).stroke_width(scale as u32);
        let style = (FONT, 15 * scale).into_font().color(&BLACK);
        for (x, label) in &across {
            let x = at(*x, 0.0).0;
            self.root.draw(&PathElement::new(vec![(x, top), (x, bottom)], faint)).map_err(text)?;
            let style = style.pos(Pos::new(HPos::Center, VPos::Center));
            self.root.draw_text(label, &style, (x, bottom + 14 * scale)).map_err(text)?;
        }
        for (y, label) in &up {
            let y = at(0.0, *y).1;
            self.root.draw(&PathElement::new(vec![(left, y), (right, y)], faint)).map_err(text)?;
            let style = style.pos(Pos::new(HPos::Right, VPos::Center));
            self.root.draw_text(label, &style, (left - 8 * scale, y)).map_err(text)?;
        }
        let axis = BLACK.stroke_width(scale as u32);
        self.root.draw(&PathElement::new(vec![(left, top), (left, bottom), (right, bottom)], axis)).map_err(text)
    }

    /// Lines, marks where a setting has a name, and the names.
    fn series(
        &self,
        rows: &[&Traded],
        up: Up,
        at: &impl Fn(f64, f64) -> (i32, i32),
        frame: Area,
    ) -> Result<(), String> {
        let scale = self.scale;
        let mut marks: Vec<(usize, (i32, i32), String)> = Vec::new();
        for (series, name) in SERIES.into_iter().enumerate().rev() {
            let mine = rows.iter().filter(|row| row.codec == name);
            let path: Vec<(i32, i32)> = mine.clone().map(|row| at(across(row), up.of(row))).collect();
            let line = COLORS[series].mix(0.55).stroke_width(2 * scale as u32);
            self.root.draw(&PathElement::new(path.clone(), line)).map_err(text)?;
            for (place, (row, at)) in mine.zip(path).enumerate() {
                // Top-k has a row for each rank, in the same order.
                let rank = place as u64 + 1;
                // Where nearly all is captured there is no room for more.
                let crowded = up == Up::Energy && series == 3 && (5..8).contains(&row.setting);
                let named = (series == 0 || series == 3) && !crowded;
                let label = if named { row.setting.to_string() } else { String::new() };
                if series == 3 || NAMED.contains(&rank) {
                    marks.push((series, at, label));
                }
            }
        }
        let mut points = Vec::with_capacity(marks.len());
        for (_, at, label) in &marks {
            let width = if label.is_empty() { 0 } else { self.width(label, 15)? + 2 * scale };
            points.push(Point { at: *at, radius: 5 * scale, label: (width, 14 * scale) });
        }
        let placed = place(&points, frame);
        for ((series, at, label), Area([left, top, right, bottom])) in marks.iter().zip(placed) {
            if !label.is_empty() {
                let behind = Rectangle::new([(left, top), (right, bottom)], WHITE.mix(0.75).filled());
                self.root.draw(&behind).map_err(text)?;
                self.write(label, (left, (top + bottom) / 2), 15, dark(*series))?;
            }
            self.marker(*series, *at, 5 * scale)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_what_people_write() {
        let labels = |range: Range<f64>| decades(&range).into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(-1.4..0.4), ["0.05", "0.1", "0.2", "0.5", "1", "2"]);
        assert_eq!(labels(0.9..2.4), ["10", "20", "50", "100", "200"]);
    }

    #[test]
    fn a_chart_is_drawn_for_any_gradients() {
        let folder = std::env::temp_dir().join(format!("gradwire-trade-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for count in [1, 2, 6] {
            let row = |gradient: usize, series: usize, setting: u64| Traded {
                gradient: format!("gradient {gradient}"),
                codec: SERIES[series].to_owned(),
                setting,
                bytes: 10_000 * setting,
                ratio: 50.0 / setting as f64,
                energy: 0.1 * setting as f64,
                relative_error: if setting == 8 { 0.0 } else { 1.0 / setting as f64 },
            };
            let rows: Vec<Traded> = (0..count)
                .flat_map(|g| (0..4).flat_map(move |s| [1, 2, 4, 8].map(|setting| row(g, s, setting))))
                .collect();
            let [svg, png] = draw(&folder.join(format!("trade{count}")), &rows).unwrap();
            let drawn = std::fs::read_to_string(svg).unwrap();
            assert_eq!(drawn.matches("kilobytes sent").count(), count.min(MOST));
            assert!(drawn.contains("gradient 0") && drawn.contains("energy captured"));
            assert!(std::fs::read(png).unwrap().starts_with(b"\x89PNG"));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
