//! Where labels stand beside their points, so that none covers another.

/// A rectangle in pixels: left, top, right, bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area(pub(crate) [i32; 4]);

impl Area {
    /// Around a point.
    pub(crate) fn around((x, y): (i32, i32), half: i32) -> Self {
        Self([x - half, y - half, x + half, y + half])
    }

    /// Pixels that two have in common.
    fn overlap(self, other: Self) -> i64 {
        let extent =
            |low: usize, high: usize| i64::from(self.0[high].min(other.0[high]) - self.0[low].max(other.0[low])).max(0);
        extent(0, 2) * extent(1, 3)
    }

    fn size(self) -> i64 {
        self.overlap(self)
    }
}

/// A point that wants a label.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) at: (i32, i32),
    /// Radius of its marker.
    pub(crate) radius: i32,
    /// Width and height of its label.
    pub(crate) label: (i32, i32),
}

/// Distances from the marker that are tried, as parts of the label's height.
const DISTANCES: [f64; 6] = [0.3, 0.8, 1.5, 2.3, 3.2, 4.5];

/// An area for each label: the nearest to its point that covers the least of markers, other labels and what is
/// outside of the frame.
pub(crate) fn place(points: &[Point], frame: Area) -> Vec<Area> {
    let markers: Vec<Area> = points.iter().map(|p| Area::around(p.at, p.radius + 1)).collect();
    let mut placed: Vec<Area> = Vec::with_capacity(points.len());
    for point in points {
        let cost = |area: Area| {
            let covered: i64 = markers.iter().chain(&placed).map(|other| area.overlap(*other)).sum();
            covered + area.size() - area.overlap(frame)
        };
        // The first of the least wins, and candidates come nearest first.
        let best = candidates(point).min_by_key(|area| cost(*area));
        placed.push(best.unwrap_or(Area::around(point.at, 0)));
    }
    placed
}

fn candidates(point: &Point) -> impl Iterator<Item = Area> {
    let ((x, y), (width, height)) = (point.at, point.label);
    let radius = point.radius;
    DISTANCES.into_iter().flat_map(move |distance| {
        let gap = radius + (distance * f64::from(height)) as i32;
        let (right, left) = (x + gap, x - gap - width);
        let (above, below, level) = (y - gap - height, y + gap, y - height / 2);
        let corners = [
            (right, level),
            (left, level),
            (right, above),
            (right, below),
            (x - width / 2, above),
            (x - width / 2, below),
            (left, above),
            (left, below),
        ];
        corners.into_iter().map(move |(left, top)| Area([left, top, left + width, top + height]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_crowded_points_do_not_meet() {
        let points: Vec<Point> =
            (0..12).map(|i| Point { at: (300 + i % 3 * 4, 300 + i * 5), radius: 5, label: (70, 14) }).collect();
        let areas = place(&points, Area([0, 0, 600, 600]));
        for (i, a) in areas.iter().enumerate() {
            assert!(areas[..i].iter().all(|b| a.overlap(*b) == 0), "{areas:?}");
            assert_eq!(a.overlap(Area([0, 0, 600, 600])), a.size());
        }
    }

    #[test]
    fn a_lone_label_stands_to_the_right_and_turns_at_the_edge() {
        let point = |x| Point { at: (x, 100), radius: 4, label: (50, 10) };
        let frame = Area([0, 0, 200, 200]);
        assert_eq!(place(&[point(100)], frame), [Area([107, 95, 157, 105])]);
        assert_eq!(place(&[point(190)], frame), [Area([133, 95, 183, 105])]);
    }
}
