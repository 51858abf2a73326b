//! The order in which a cosine transform takes squares of matrices.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
use gradwire_kernels::arith::tiles::reciprocal;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use gradwire_kernels::params::{DECODE_SPAN, TilesParams, tiles_flags};

use crate::codec::powersgd::Matrix;
use crate::error::Error;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::plan::{Bindings, Kernel, Limits, Params, Pass, Span};
use crate::words::zeros;

/// Tensors one after another, and the order in which their elements are blocks: first, matrix by matrix, each whole
/// tile; then, tensor by tensor, all that no whole tile holds.
///
/// Tiles of a row of tiles come beside each other, and then the next row of tiles; a tile's elements row by row. Of
/// what is left of a matrix, what lies right of its tiles comes first, row by row, and then its last rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tiles(Vec<Move>);

/// Rows of tiles of a matrix, which are one after another in the order. With tiles of one element, a row of tiles is
/// a piece of a row of the matrix; and if there is one such row, it is a run of elements in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    /// Where the first tile begins as tensors lie.
    pub(crate) lies: u64,
    /// Where it begins in the order.
    pub(crate) ordered: u64,
    /// Rows of tiles.
    pub(crate) rows: u64,
    /// Tiles beside each other.
    pub(crate) beside: u64,
    /// Rows of a tile, and elements of its rows: a power of two.
    pub(crate) side: u64,
    /// Elements from a row of the matrix to the next one.
    pub(crate) stride: u64,
}

impl Move {
    /// Elements that lie one after another in both.
    const fn run(lies: u64, ordered: u64, elements: u64) -> Self {
        Self { lies, ordered, rows: 1, beside: elements, side: 1, stride: elements }
    }

    /// Its elements.
    pub(crate) const fn elements(&self) -> u64 {
        self.rows * self.beside * self.side * self.side
    }

    /// Whether the elements lie one after another in both.
    pub(crate) const fn is_run(&self) -> bool {
        self.rows == 1 && self.side == 1
    }

    /// Elements that lie one after another in both, and where each such piece begins, as it lies and in the order.
    fn pieces(self) -> (usize, impl Iterator<Item = (usize, usize)>) {
        // Tiles of one element that are beside each other are one piece.
        let (beside, width) = if self.side == 1 { (1, self.beside) } else { (self.beside, self.side) };
        let pieces = (0..self.rows * beside * self.side).map(move |piece| {
            let (tile, line) = (piece / self.side, piece % self.side);
            let (row, column) = (tile / beside * self.side + line, tile % beside * width);
            ((self.lies + row * self.stride + column) as usize, (self.ordered + piece * width) as usize)
        });
        (width as usize, pieces)
    }
}

impl Tiles {
    /// Tiles of this side, of matrices one after another.
    pub(crate) fn new(side: u64, matrices: &[Matrix]) -> Self {
        let in_tiles = |matrix: &Matrix| [matrix.rows / side * side, matrix.columns / side * side];
        let area = |matrix: &Matrix| in_tiles(matrix).iter().product::<u64>();
        let (mut moves, mut left): (Vec<Move>, Vec<Move>) = (Vec::new(), Vec::new());
        let (mut lies, mut ordered, mut rest) = (0, 0, matrices.iter().map(area).sum::<u64>());
        let mut leave = |next: Move| {
            match left.last_mut() {
                // What follows in both is one with what comes before.
                Some(last) if last.is_run() && next.is_run() && last.lies + last.beside == next.lies => {
                    *last = Move::run(last.lies, last.ordered, last.beside + next.beside);
                }
                _ if next.elements() > 0 => left.push(next),
                _ => {}
            }
        };
        for matrix in matrices {
            let ([rows, columns], stride, end) = (in_tiles(matrix), matrix.columns, lies + matrix.elements());
            let mut below = lies;
            if area(matrix) > 0 {
                let (down, beside) = (rows / side, columns / side);
                moves.push(Move { lies, ordered, rows: down, beside, side, stride });
                ordered += rows * columns;
                below += rows * stride;
                let right = stride - columns;
                leave(Move { lies: lies + columns, ordered: rest, rows, beside: right, side: 1, stride });
                rest += rows * right;
            }
            leave(Move::run(below, rest, end - below));
            (lies, rest) = (end, rest + end - below);
        }
        moves.extend(left);
        Self(moves)
    }

    /// The moves, in the order.
    #[cfg(any(test, feature = "cuda", feature = "wgpu"))]
    pub(crate) fn moves(&self) -> &[Move] {
        &self.0
    }

    /// The elements of tensors one after another, in the order.
    pub(crate) fn order(&self, tensors: &[f32]) -> Result<Vec<f32>, Error> {
        self.copied(tensors, |lies, ordered| (lies, ordered))
    }

    /// The tensors one after another, of their elements in the order.
    pub(crate) fn put_back(&self, ordered: &[f32]) -> Result<Vec<f32>, Error> {
        self.copied(ordered, |lies, ordered| (ordered, lies))
    }

    /// Copies rows of tiles, each from and to where `way` says.
    fn copied(&self, values: &[f32], way: impl Fn(usize, usize) -> (usize, usize)) -> Result<Vec<f32>, Error> {
        let mut copied = zeros(values.len() as u64, "coefficients in their order")?;
        for one in &self.0 {
            let (width, pieces) = one.pieces();
            for (lies, ordered) in pieces {
                let (from, to) = way(lies, ordered);
                copied[to..to + width].copy_from_slice(&values[from..from + width]);
            }
        }
        Ok(copied)
    }
}

/// Elements that are bound begin at multiples of this many, which are 256 bytes.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
const UNIT: u64 = 64;

/// The passes that put tiles one after another, or back, each of as many rows of tiles as a device's limits admit.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) fn passes(of: &Move, back: bool, limits: &Limits) -> Result<Vec<Pass>, Error> {
    // A row of tiles as it lies, with what is right of it, and in the order.
    let (lies, ordered) = (of.side * of.stride, of.side * of.side * of.beside);
    let (most, span) = ((limits.binding_bytes / 4).min(1 << 31), u64::from(DECODE_SPAN));
    let by_binding = most.saturating_sub(UNIT - 1) / lies;
    let by_groups = u64::from(limits.groups).saturating_mul(span) / ordered;
    if by_binding == 0 {
        let limit = "max_storage_buffer_binding_size";
        return Err(Error::Limit { limit, found: limits.binding_bytes, needed: 4 * (lies + UNIT - 1) });
    }
    if by_groups == 0 {
        let limit = "max_compute_workgroups_per_dimension";
        return Err(Error::Limit { limit, found: limits.groups.into(), needed: ordered.div_ceil(span) });
    }
    let most = by_binding.min(by_groups);
    let [reciprocal, beside_log2] = reciprocal(of.beside as u32);
    let pass = |row: u64| {
        let rows = (of.rows - row).min(most);
        // Where the elements of these rows begin, and how many there are from the first to the last.
        let [lies, ordered] = [
            (of.lies + row * lies, (rows * of.side - 1) * of.stride + of.side * of.beside),
            (of.ordered + row * ordered, rows * ordered),
        ]
        .map(|(first, elements)| {
            let base = first / UNIT * UNIT;
            ((first - base) as u32, Span { offset: 4 * base, bytes: 4 * (first + elements - base) })
        });
        let (input, output) = if back { (ordered.1, lies.1) } else { (lies.1, ordered.1) };
        let n = rows * of.side * of.side * of.beside;
        let params = TilesParams {
            n: n as u32,
            lies: lies.0,
            ordered: ordered.0,
            side_log2: of.side.trailing_zeros(),
            beside: of.beside as u32,
            reciprocal,
            beside_log2,
            stride: of.stride as u32,
            flags: if back { tiles_flags::INVERSE } else { 0 },
        };
        Pass {
            kernel: Kernel::Tiles,
            params: Params::Tiles(params),
            bindings: Bindings { input, output, ..Bindings::default() },
            groups: n.div_ceil(span) as u32,
        }
    };
    Ok((0..of.rows.div_ceil(most)).map(|index| pass(index * most)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order as [`Dct::tiles`] describes it: of each element, its place as it lies.
    fn naive(side: u64, matrices: &[Matrix]) -> Vec<u64> {
        let (mut tiles, mut rest, mut base) = (Vec::new(), Vec::new(), 0);
        for Matrix { rows, columns } in matrices.iter().copied() {
            let (whole_rows, whole_columns) = (rows - rows % side, columns - columns % side);
            let at = |row: u64, column: u64| base + row * columns + column;
            let in_tile = |row: u64, column: u64| row < whole_rows && column < whole_columns;
            let mut by_tile: Vec<_> = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))).collect();
            by_tile.retain(|(r, c)| in_tile(*r, *c));
            by_tile.sort_by_key(|(r, c)| (r / side, c / side, r % side, c % side));
            tiles.extend(by_tile.into_iter().map(|(r, c)| at(r, c)));
            let tiled = whole_columns > 0;
            let right = |r: u64, c: u64| tiled && r < whole_rows && c >= whole_columns;
            for first in [true, false] {
                for (r, c) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
                    if !in_tile(r, c) && right(r, c) == first {
                        rest.push(at(r, c));
                    }
                }
            }
            base += rows * columns;
        }
        tiles.extend(rest);
        tiles
    }

    fn models() -> Vec<Vec<Matrix>> {
        let m = Matrix::new;
        vec![
            vec![],
            vec![m(0, 5), m(5, 0), m(0, 0)],
            vec![m(64, 64)],
            vec![Matrix::vector(13), m(128, 192), Matrix::vector(7)],
            vec![m(9, 11), m(8, 8), m(7, 30), m(30, 7), m(8, 13), m(13, 8), Matrix::of(&[5, 2, 3, 3]), m(1, 1)],
            vec![m(2, 5), Matrix::vector(3), m(3, 2), m(65, 67), Matrix::vector(1), m(70, 63), m(63, 70), m(64, 129)],
        ]
    }

    #[test]
    fn the_order_is_as_described_and_back_is_backwards() {
        for matrices in models() {
            for side in [2, 4, 8, 16, 32, 64] {
                let tiles = Tiles::new(side, &matrices);
                let n = matrices.iter().map(Matrix::elements).sum::<u64>();
                assert_eq!(tiles.moves().iter().map(Move::elements).sum::<u64>(), n, "{matrices:?}, {side}");
                let lies: Vec<f32> = (0..n).map(|i| i as f32).collect();
                let ordered = tiles.order(&lies).expect("memory");
                let expected: Vec<f32> = naive(side, &matrices).into_iter().map(|i| i as f32).collect();
                assert_eq!(ordered, expected, "{matrices:?}, {side}");
                assert_eq!(tiles.put_back(&ordered).expect("memory"), lies, "{matrices:?}, {side}");
            }
        }
    }

    /// The assumption of the test above: no two elements have one place.
    #[test]
    fn the_order_is_a_bijection() {
        for matrices in models() {
            for side in [2, 8, 64] {
                let mut places = naive(side, &matrices);
                places.sort_unstable();
                assert!(places.iter().copied().eq(0..matrices.iter().map(Matrix::elements).sum::<u64>()));
            }
        }
    }

    #[test]
    fn what_follows_in_both_is_one_move() {
        let tiles = Tiles::new(2, &[Matrix::vector(3), Matrix::vector(5), Matrix::new(3, 3), Matrix::vector(4)]);
        let (tile, edge) = (tiles.moves()[0], tiles.moves()[2]);
        assert_eq!((tile.lies, tile.ordered, tile.elements()), (8, 0, 4));
        assert_eq!(tiles.moves()[1], Move::run(0, 4, 8));
        assert_eq!((edge.lies, edge.ordered, edge.elements(), edge.is_run()), (10, 12, 2, false));
        assert_eq!(tiles.moves()[3], Move::run(14, 14, 7));
        assert_eq!(tiles.moves().len(), 4);
    }

    #[test]
    fn bits_are_kept() {
        let tiles = Tiles::new(2, &[Matrix::new(2, 3)]);
        let words = [0x7fc0_1234, 0xff80_0001, 0x8000_0000, 1, 0x7f80_0000, 2];
        let lies = words.map(f32::from_bits);
        let back = tiles.put_back(&tiles.order(&lies).expect("memory")).expect("memory");
        assert!(back.iter().map(|v| v.to_bits()).eq(words));
    }
}
