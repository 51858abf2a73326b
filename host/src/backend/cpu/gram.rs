//! The loops of [`super::orthonormal`] over rows, which are compiled for each vector width.

/// Rows that a triangle is applied to together.
const STRIP: usize = 64;
/// Sums that run side by side.
const WIDE: usize = 8;
/// Products of the columns of a block. The columns are padded with zeros to whole vectors.
#[inline(always)]
pub(super) fn products(columns: &[&[f32]], out: &mut [f64]) {
    let mut out = out.iter_mut();
    for (i, a) in columns.iter().enumerate() {
        for (b, out) in columns[..=i].iter().zip(&mut out) {
            let mut sums = [0.0f64; WIDE];
            for (a, b) in a.as_chunks::<WIDE>().0.iter().zip(b.as_chunks::<WIDE>().0) {
                for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
                    *sum += f64::from(*a) * f64::from(*b);
                }
            }
            for half in [4, 2, 1] {
                for i in 0..half {
                    sums[i] += sums[i + half];
                }
            }
            *out = sums[0];
        }
    }
}

/// Multiplies the rows of a block by the inverse transposed triangle.
#[inline(always)]
pub(super) fn solve(columns: &mut [&mut [f32]], triangle: &[f64]) {
    const MOST: usize = gradwire_kernels::arith::powersgd::MOST_RANK as usize;
    let rows = columns.first().map_or(0, |c| c.len());
    let mut strip = [[0.0f64; STRIP]; MOST];
    for at in (0..rows).step_by(STRIP) {
        let width = STRIP.min(rows - at);
        for (i, column) in columns.iter_mut().enumerate() {
            let row = &triangle[i * (i + 1) / 2..][..=i];
            let (before, mine) = strip.split_at_mut(i % MOST);
            let mut sums = [0.0f64; STRIP];
            sums.iter_mut().zip(&column[at..at + width]).for_each(|(sum, v)| *sum = f64::from(*v));
            for (earlier, factor) in before.iter().zip(row) {
                for (sum, v) in sums.iter_mut().zip(earlier) {
                    *sum -= factor * v;
                }
            }
            sums.iter_mut().for_each(|sum| *sum *= row[i]);
            column[at..at + width].iter_mut().zip(&sums).for_each(|(to, sum)| *to = *sum as f32);
            mine[0] = sums;
        }
    }
}
