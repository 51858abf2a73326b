//! PowerSGD in f64, slow and plain, sharing no code with the library; and a singular value decomposition to hold it
//! against.

/// A matrix in f64, row after row.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// Rows.
    pub n: usize,
    /// Columns.
    pub m: usize,
    /// Elements.
    pub x: Vec<f64>,
}

impl Dense {
    /// From a function of row and column.
    pub fn new(n: usize, m: usize, of: impl Fn(usize, usize) -> f64) -> Self {
        Self { n, m, x: (0..n * m).map(|at| of(at / m, at % m)).collect() }
    }

    /// From f32, row after row.
    pub fn of(n: usize, m: usize, x: &[f32]) -> Self {
        Self::new(n, m, |i, j| f64::from(x[i * m + j]))
    }

    /// From a factor's columns, one after another.
    pub fn columns(n: usize, x: &[f32]) -> Self {
        Self::new(n, x.len() / n, |i, k| f64::from(x[k * n + i]))
    }

    /// An element.
    pub fn at(&self, i: usize, j: usize) -> f64 {
        self.x[i * self.m + j]
    }

    /// The transpose.
    pub fn t(&self) -> Self {
        Self::new(self.m, self.n, |i, j| self.at(j, i))
    }

    /// The product.
    pub fn times(&self, other: &Self) -> Self {
        assert_eq!(self.m, other.n);
        Self::new(self.n, other.m, |i, j| (0..self.m).map(|k| self.at(i, k) * other.at(k, j)).sum())
    }

    /// The difference.
    pub fn minus(&self, other: &Self) -> Self {
        Self::new(self.n, self.m, |i, j| self.at(i, j) - other.at(i, j))
    }

    /// Frobenius norm.
    pub fn norm(&self) -> f64 {
        self.x.iter().map(|v| v * v).sum::<f64>().sqrt()
    }

    /// Columns made orthonormal by Gram and Schmidt, twice; a column of which nothing is left becomes zeros.
    pub fn orthonormal(&self) -> Self {
        let mut columns: Vec<Vec<f64>> = (0..self.m).map(|k| (0..self.n).map(|i| self.at(i, k)).collect()).collect();
        for k in 0..self.m {
            let before = columns[k].iter().map(|v| v * v).sum::<f64>().sqrt();
            for _ in 0..2 {
                for earlier in 0..k {
                    let (first, rest) = columns.split_at_mut(k);
                    let dot: f64 = first[earlier].iter().zip(&rest[0]).map(|(a, b)| a * b).sum();
                    rest[0].iter_mut().zip(&first[earlier]).for_each(|(b, a)| *b -= dot * a);
                }
            }
            let norm = columns[k].iter().map(|v| v * v).sum::<f64>().sqrt();
            let scale = if norm > 1e-12 * before { 1.0 / norm } else { 0.0 };
            columns[k].iter_mut().for_each(|v| *v *= scale);
        }
        Self::new(self.n, self.m, |i, k| columns[k][i])
    }

    /// Singular values, falling: one-sided Jacobi (Hestenes 1958), on the columns.
    pub fn singular_values(&self) -> Vec<f64> {
        let source = if self.n < self.m { self.t() } else { self.clone() };
        let mut c: Vec<Vec<f64>> = (0..source.m).map(|k| (0..source.n).map(|i| source.at(i, k)).collect()).collect();
        for _ in 0..60 {
            let mut turned = false;
            for p in 0..c.len() {
                for q in p + 1..c.len() {
                    let (head, tail) = c.split_at_mut(q);
                    let (a, b) = (&mut head[p], &mut tail[0]);
                    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
                    let (aa, bb, ab) = (dot(a, a), dot(b, b), dot(a, b));
                    if ab.abs() <= 1e-15 * (aa * bb).sqrt() {
                        continue;
                    }
                    turned = true;
                    let zeta = (bb - aa) / (2.0 * ab);
                    let t = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
                    let cos = 1.0 / (1.0 + t * t).sqrt();
                    let sin = cos * t;
                    for (x, y) in a.iter_mut().zip(b.iter_mut()) {
                        (*x, *y) = (cos * *x - sin * *y, sin * *x + cos * *y);
                    }
                }
            }
            if !turned {
                break;
            }
        }
        let mut values: Vec<f64> = c.iter().map(|c| c.iter().map(|v| v * v).sum::<f64>().sqrt()).collect();
        values.sort_by(|a, b| b.total_cmp(a));
        values
    }
}

#[cfg(test)]
mod tests {
    use super::Dense;

    #[test]
    fn singular_values_of_a_known_matrix() {
        // Eigenvalues of A^T A = [[25, 20], [20, 25]] are 45 and 5.
        let values = Dense::new(2, 2, |i, j| [[3.0, 0.0], [4.0, 5.0]][i][j]).singular_values();
        assert!((values[0] - 45f64.sqrt()).abs() < 1e-12 && (values[1] - 5f64.sqrt()).abs() < 1e-12, "{values:?}");
    }
}
