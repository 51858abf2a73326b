//! The passes of PowerSGD over a slab: neighbouring rows of a matrix, with all their columns.
//!
//! Sums are in one order, whatever the vector width: along a row sixteen lanes, folded in f64 every [`PANEL`] columns;
//! down a slab row after row. `form.rs` forms the rows, and writes those of L R^T; `product.rs` multiplies them.

mod form;
mod multiply;
mod parts;
mod product;

pub(super) use self::form::{expand, first_not_finite};
pub(super) use self::multiply::multiply;
pub(super) use self::parts::{Before, Form, Rows, Slab, group_of, line_up, lines_of, tile, tiles_of};
