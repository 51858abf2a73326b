//! Cosine transforms: the same bits on every vector width, what the transform promises, and exchanges of coefficients.

use gradwire::backend::cpu::{Cpu, Simd};
use gradwire::{BackendKind, Compressor, Dct, Device, Error, Policy, Recipe, RecipeError, Seed, Tensor, TopK};
use gradwire_collectives::Threads;
use gradwire_tests::cases::normal;
use gradwire_tests::transforms::{inputs, same};
use gradwire_tests::{Depth, require};

const SIDES: [usize; 6] = [2, 4, 8, 16, 32, 64];

/// Lengths of every small block, around whole ones and several of them, and of more than one thread's part.
const LENGTHS: [usize; 10] = [1, 2, 3, 63, 64, 1000, 4095, 4096, 20_001, 140_007];

/// The blocks of a tensor: each one's first element, rows, and elements of a row.
fn blocks(n: usize, side: usize) -> Vec<(usize, usize, usize)> {
    let (mut at, mut size, mut out) = (0, side * side, Vec::new());
    while at < n {
        while n - at < size {
            size /= 2;
        }
        let rows = 1 << (size.ilog2() / 2);
        out.push((at, rows, size / rows));
        at += size;
    }
    out
}

/// The transform of a line without roots, by its definition of halves.
fn second(x: &[f32]) -> Vec<f32> {
    let n = x.len();
    if n == 1 {
        return x.to_vec();
    }
    let even = second(&(0..n / 2).map(|j| x[j] + x[n - 1 - j]).collect::<Vec<_>>());
    let odd = fourth(&(0..n / 2).map(|j| x[j] - x[n - 1 - j]).collect::<Vec<_>>());
    (0..n).map(|k| if k % 2 == 0 { even[k / 2] } else { odd[k / 2] }).collect()
}

fn back(y: &[f32]) -> Vec<f32> {
    let n = y.len();
    if n == 1 {
        return y.to_vec();
    }
    let sums = back(&y.iter().step_by(2).copied().collect::<Vec<_>>());
    let differences = fourth(&y.iter().skip(1).step_by(2).copied().collect::<Vec<_>>());
    let at = |j: usize| if j < n / 2 { sums[j] + differences[j] } else { sums[n - 1 - j] - differences[n - 1 - j] };
    (0..n).map(at).collect()
}

fn fourth(x: &[f32]) -> Vec<f32> {
    let n = x.len();
    let turn = |j: usize| {
        let angle = (2 * j + 1) as f64 * std::f64::consts::PI / (4 * n) as f64;
        (angle.cos() as f32, angle.sin() as f32)
    };
    if n == 1 {
        return vec![x[0] * turn(0).0];
    }
    let a = second(&(0..n / 2).map(|j| x[j] * turn(j).0 + x[n - 1 - j] * turn(j).1).collect::<Vec<_>>());
    let across = |j: usize| {
        let (a, b) = (x[j] * turn(j).1, x[n - 1 - j] * turn(j).0);
        if j.is_multiple_of(2) { a - b } else { b - a }
    };
    let b = second(&(0..n / 2).map(across).collect::<Vec<_>>());
    let of = |k: usize| match k {
        0 => a[0],
        k if k == n - 1 => b[0],
        k if k % 2 == 1 => a[k.div_ceil(2)] + b[n / 2 - k.div_ceil(2)],
        k => a[k / 2] - b[n / 2 - k / 2],
    };
    (0..n).map(of).collect()
}

/// A block's rows or columns, each through a function.
fn along(block: &mut [f32], rows: usize, columns: usize, of_rows: bool, f: fn(&[f32]) -> Vec<f32>) {
    let (lines, length) = if of_rows { (rows, columns) } else { (columns, rows) };
    for line in 0..lines {
        let place = |i: usize| if of_rows { line * columns + i } else { i * columns + line };
        let values: Vec<f32> = (0..length).map(|i| block[place(i)]).collect();
        f(&values).into_iter().enumerate().for_each(|(i, v)| block[place(i)] = v);
    }
}

/// The root of the first or another coefficient of a line.
fn root(k: usize, n: usize) -> f64 {
    (if k == 0 { 1.0 } else { 2.0 } / n as f64).sqrt()
}

fn transform(x: &[f32], side: usize, inverse: bool) -> Vec<f32> {
    let mut y = x.to_vec();
    for (at, rows, columns) in blocks(x.len(), side) {
        let block = &mut y[at..at + rows * columns];
        let scale = |block: &mut [f32]| {
            for (i, v) in block.iter_mut().enumerate() {
                // The square is a power of two, of which the root is exact or that of two: rounded once.
                let square = (root(i / columns, rows) * root(i % columns, columns)).powi(2);
                *v *= 2f64.powi(square.log2().round() as i32).sqrt() as f32;
            }
        };
        if inverse {
            scale(block);
            along(block, rows, columns, false, back);
            along(block, rows, columns, true, back);
        } else {
            along(block, rows, columns, true, second);
            along(block, rows, columns, false, second);
            scale(block);
        }
    }
    y.iter_mut().filter(|v| v.is_nan()).for_each(|v| *v = f32::from_bits(0x7fc0_0000));
    y
}

/// The transform by its matrix of cosines, in binary64.
fn exact(x: &[f64], side: usize, inverse: bool) -> Vec<f64> {
    let mut out = vec![0.0; x.len()];
    for (at, rows, columns) in blocks(x.len(), side) {
        let matrix = |n: usize| -> Vec<f64> {
            let entry = |k: usize, j: usize| {
                root(k, n) * ((k * (2 * j + 1)) as f64 * std::f64::consts::PI / (2 * n) as f64).cos()
            };
            let at = |i: usize| if inverse { entry(i % n, i / n) } else { entry(i / n, i % n) };
            (0..n * n).map(at).collect()
        };
        let (left, right) = (matrix(rows), matrix(columns));
        let block = &x[at..at + rows * columns];
        let mut half = vec![0.0; rows * columns];
        for (i, value) in half.iter_mut().enumerate() {
            let (row, k) = (i / columns, i % columns);
            *value = (0..columns).map(|j| right[k * columns + j] * block[row * columns + j]).sum();
        }
        for (i, value) in out[at..at + rows * columns].iter_mut().enumerate() {
            let (k, column) = (i / columns, i % columns);
            *value = (0..rows).map(|j| left[k * rows + j] * half[j * columns + column]).sum();
        }
    }
    out
}

/// Devices that have the transform.
fn devices() -> Vec<Device> {
    let cpus = Simd::ALL.into_iter().filter_map(|simd| Cpu::with_simd(simd).ok());
    cpus.map(Device::from_cpu).collect()
}

/// There and back, bit for bit as the formula.
///
/// By default one of so many parts of the inputs has its turn.
fn expect_formula(device: &Device, side: usize, n: usize, parts: usize) {
    let wanted = |(index, _): &(usize, _)| Depth::of_tests().takes(index + n + side.ilog2() as usize, parts);
    for (_, (name, x)) in inputs(n).into_iter().enumerate().filter(wanted) {
        let label = format!("{device}: {name}, n = {n}, side {side}");
        let y = device.dct(Dct::block(side), &x).unwrap_or_else(|e| panic!("{label}: {e}"));
        same(&label, &y, &transform(&x, side, false));
        let back = device.inverse_dct(Dct::block(side), &y).unwrap_or_else(|e| panic!("{label}: {e}"));
        same(&label, &back, &transform(&y, side, true));
    }
}

#[test]
fn every_vector_width_gives_the_bits_of_the_formula() {
    for device in devices() {
        for side in SIDES {
            LENGTHS.into_iter().for_each(|n| expect_formula(&device, side, n, 1));
        }
    }
}

fn norm(x: impl IntoIterator<Item = f64>) -> f64 {
    x.into_iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// What a block of 2^k elements is off by, of its norm.
///
/// With a rounding of u = 2^-24, sums and differences add u of the norm, since without their roots they are orthogonal.
/// A rotation adds at most (u of the table + u of a product + u of a sum) |R| |x| with |R| <= sqrt(2) for the matrix of
/// magnitudes, which is below 4.25 u; the fourth kind of one element 2 u, of its table and its product. So with e2(n)
/// and e4(n) for lines: e2(1) = 0, e4(1) = 2 u, e2(n) = u + max(e2, e4)(n / 2), e4(n) = 5.25 u + e2(n / 2). Both are
/// below 4 u log2 n + 2 u, and e2(n) below 4 u log2 n. The root adds 2 u. Terms of a higher order are below 0.1%.
fn bound(log2: u32) -> f64 {
    let (mut e2, mut e4) = (0.0f64, 2.0f64);
    for length in 1..=6 {
        (e2, e4) = (1.0 + e2.max(e4), 5.25 + e2);
        assert!(e2 <= 4.0 * f64::from(length));
    }
    f64::from(4 * log2 + 2) * 2f64.powi(-24) * 1.001
}

#[test]
fn every_other_backend_gives_the_bits_of_the_formula() {
    for device in require::devices().into_iter().filter(|device| device.kind() != BackendKind::Cpu) {
        let few = gradwire_tests::is_ptx_machine(&device);
        for side in SIDES {
            let lengths = LENGTHS.into_iter().filter(|n| !few || *n < 10_000 && (side == 64 || *n < 2000));
            lengths.for_each(|n| expect_formula(&device, side, n, 3));
        }
        // An exchange is that of the CPU.
        let exchanged = |device: &Device| {
            let mut group = Threads::group(1).expect("one").remove(0);
            let mut compressor =
                Compressor::new("dct+topk:k=32,block=4096+ef:beta=0.5", [[64, 128]], 1).expect("valid");
            let mut x = normal(8192, 3);
            compressor.exchange(device, &mut group, &mut x).expect("it runs");
            (bits(&x), compressor.state().expect("idle"))
        };
        assert!(exchanged(&device) == exchanged(&Device::cpu()), "{device}");
        let of_tiles = |device: &Device| {
            let text = "dct:block=16,tiles+topk:k=8,block=256,clamped+ef:beta=0.5";
            let (mut x, mut compressor) = (normal(ODD, 4), compressor(text));
            step(&mut compressor, device, &mut x);
            (bits(&x), compressor.state().expect("idle"))
        };
        assert!(of_tiles(&device) == of_tiles(&Device::cpu()), "{device}");
    }
}

#[test]
fn it_is_the_matrix_of_cosines_and_orthogonal_to_the_stated_bound() {
    let device = Device::cpu();
    let wide = |x: &[f32]| x.iter().copied().map(f64::from).collect::<Vec<f64>>();
    for side in SIDES {
        for n in [4096 * 2 + 4095, 1000] {
            for (name, x) in inputs(n).into_iter().filter(|(name, _)| !matches!(*name, "bits" | "poisoned" | "max")) {
                let (dct, wide_x) = (Dct::block(side), wide(&x));
                let y = device.dct(dct, &x).expect("valid");
                let again = device.inverse_dct(dct, &y).expect("valid");
                let back = device.inverse_dct(dct, &x).expect("valid");
                let (exact_y, exact_back) = (exact(&wide_x, side, false), exact(&wide_x, side, true));
                for (at, rows, columns) in blocks(n, side) {
                    let all = at..at + rows * columns;
                    let each = bound((rows * columns).ilog2());
                    let size = norm(wide_x[all.clone()].iter().copied());
                    let off = |found: &[f32], exact: &[f64]| norm(all.clone().map(|i| f64::from(found[i]) - exact[i]));
                    let label = format!("{name}, n = {n}, side {side}, block at {at}");
                    let (most, small) = (each * size, 2f64.powi(-130));
                    assert!(off(&y, &exact_y) <= most + small, "{label}: {}", off(&y, &exact_y));
                    assert!(off(&back, &exact_back) <= most + small, "{label}: {}", off(&back, &exact_back));
                    assert!(off(&again, &wide_x) <= 2.0 * most + 2.0 * small, "{label}: {}", off(&again, &wide_x));
                    // Parseval.
                    let of_y = norm(y[all.clone()].iter().copied().map(f64::from));
                    assert!((of_y - size).abs() <= most + small, "{label}: {size} became {of_y}");
                }
            }
        }
    }
}

#[test]
fn by_hand() {
    let device = Device::cpu();
    for side in SIDES {
        let (dct, n) = (Dct::block(side), side * side);
        // A constant block has one coefficient, and every cosine is one of another block's.
        let y = device.dct(dct, &vec![0.75; 2 * n]).expect("valid");
        for (i, v) in y.iter().enumerate() {
            assert_eq!(*v, if i % n == 0 { 0.75 * side as f32 } else { 0.0 }, "side {side}, {i}");
        }
        let mut one = vec![0.0; n];
        one[0] = 1.0;
        let flat = device.inverse_dct(dct, &one).expect("valid");
        assert!(flat.iter().all(|v| *v == 1.0 / side as f32));
    }
    let y = device.dct(Dct::block(2), &[1.0, 2.0, 3.0, 5.0]).expect("valid");
    // Halves of sums and differences: cos(pi / 4) sqrt(2 / 2) each way is rounded, and so is its square.
    for (found, expected) in y.iter().zip([5.5, -1.5, -2.5, 0.5]) {
        assert!((found - expected).abs() < 1e-6, "{y:?}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    for side in [0, 1, 3, 128, usize::MAX] {
        let error = Device::cpu().dct(Dct::block(side), &[1.0]).expect_err("no such block");
        assert!(matches!(error, Error::Setting { .. }) && error.to_string().contains("2 to 64"), "{error}");
    }
    assert!(Device::cpu().dct(Dct::default(), &[]).expect("nothing").is_empty());
    for text in ["dct", "dct+powersgd", "dct+rotate+qsgd", "dct+sign:unit+vote"] {
        let error = text.parse::<Recipe>().expect_err(text);
        assert!(error.to_string().contains("or leave out dct"), "{error}");
    }
    for (text, says) in
        [("dct:block=3+qsgd", "2 to 64"), ("dct:64+qsgd", "block or tiles could"), ("dct+qsgd+dct", "another kind")]
    {
        let error = text.parse::<Recipe>().expect_err(text);
        assert!(error.to_string().contains(says), "{error}");
    }
    for text in ["dct:tiles", "dct:block=64,tiles"] {
        let error = text.parse::<Recipe>().expect_err(text);
        assert!(error.to_string().contains("or leave out dct"), "{error}");
    }
    for (text, says) in [("dct:tiles=2+qsgd", "takes no value"), ("dct:tile+qsgd", "block or tiles could")] {
        let error = text.parse::<Recipe>().expect_err(text);
        assert!(error.to_string().contains(says), "{error}");
    }
    // A slice has no rows.
    for error in [
        Device::cpu().dct(Dct::default().tiles(), &[1.0; 4096]).expect_err("no rows"),
        Device::cpu().inverse_dct(Dct::block(2).tiles(), &[]).expect_err("no rows"),
    ] {
        assert!(matches!(error, Error::Recipe(RecipeError::Stages { .. })), "{error:?}");
        assert!(error.to_string().ends_with("use Compressor::exchange with a recipe of dct:tiles"), "{error}");
    }
    // A side that is none is refused before it divides anything.
    for side in [0, 3, 128] {
        let recipe = Recipe::from(TopK::fraction(0.1)).dct(Dct::block(side).tiles());
        let error = Compressor::new(recipe, [[64, 64]], 1).expect_err("no such tile");
        assert!(matches!(error, Error::Setting { .. }), "{error:?}");
    }
    let recipe = Recipe::from(TopK::fraction(0.1)).dct(Dct::block(8));
    assert!(recipe.selection().is_none(), "a codec of the gradient would select something else");
    assert!("dct+qsgd".parse::<Recipe>().expect("valid").quantizer().is_none());
}

/// DeMo's selection: of every block its 32 largest coefficients hold at least 32/4096 of the energy, and what is kept
/// and what was sent add up to what there was, to the bit.
#[test]
fn a_selection_contracts_and_conserves() {
    let (device, n) = (Device::cpu(), 4096 * 3 + 500);
    let text = "dct+topk:k=32,block=4096,clamped+ef";
    for (name, x) in inputs(n).into_iter().filter(|(name, _)| !matches!(*name, "bits" | "poisoned" | "max")) {
        let mut group = Threads::group(1).expect("one").remove(0);
        let mut compressor = Compressor::new(text, [[4, n as u64 / 4]], 5).expect("valid");
        let mut before = vec![0.0f32; n];
        for step in 0..3 {
            let y = device.dct(Dct::default(), &x).expect("valid");
            let all: Vec<f32> = before.iter().zip(&y).map(|(a, b)| a + b).collect();
            let mut mean = x.clone();
            compressor.exchange(&device, &mut group, &mut mean).expect("it runs");
            let after = compressor.residual().expect("idle");
            let sent: Vec<f32> = all.iter().zip(&after).map(|(a, b)| if *b == 0.0 { *a } else { 0.0 }).collect();
            for (i, (all, after)) in all.iter().zip(&after).enumerate() {
                assert!(*after == 0.0 || after == all, "{name}, step {step}: coefficient {i} is {after} of {all}");
            }
            same(&format!("{name}, step {step}"), &mean, &device.inverse_dct(Dct::default(), &sent).expect("valid"));
            for (at, block) in sent.chunks(4096).enumerate() {
                let of = |v: &[f32]| norm(v.iter().copied().map(f64::from)).powi(2);
                let (kept, whole) = (of(block), of(&all[at * 4096..at * 4096 + block.len()]));
                assert!(kept >= 32.0 / block.len() as f64 * whole * (1.0 - 1e-12), "{name}: {kept} of {whole}");
                assert!(block.iter().filter(|v| **v != 0.0).count() <= 32, "{name}");
            }
            before = after;
        }
    }
}

/// The first seed of the inputs of the test below.
const DEMO: u64 = 100;

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// DeMo as its algorithm 1 has it, in binary64 and with the momentum of the gradient's elements: m = beta m + lr g,
/// what is sent are the largest coefficients of m, and m loses their transform back.
///
/// The compressor's momentum is of coefficients. Each step adds the transform's error, of the gradient, and three
/// roundings of the momentum; nothing is enlarged. The last transform back adds its error, of what is sent. The test's
/// inputs have no coefficient so near to the threshold that one sends it and the other does not.
#[test]
fn it_is_demo_with_the_momentum_of_the_elements() {
    let (device, n, k, beta, lr, steps) = (Device::cpu(), 4096usize, 32, 0.999f32, 0.5f32, 5);
    let text = format!("dct:block=64+topk:k={k},block=4096+ef:beta={beta},gamma={lr}");
    let mut group = Threads::group(1).expect("one").remove(0);
    let mut compressor = Compressor::new(text.as_str(), [[64, 64]], 5).expect("valid");
    let (mut momentum, mut added) = (vec![0.0f64; n], 0.0);
    for step in 0..steps {
        let gradient = normal(n, DEMO + step);
        for (m, g) in momentum.iter_mut().zip(&gradient) {
            *m = f64::from(beta) * *m + f64::from(lr) * f64::from(*g);
        }
        let wide = |v: &[f32]| norm(v.iter().copied().map(f64::from));
        added += bound(12) * f64::from(lr) * wide(&gradient);
        added += 3.0 * 2f64.powi(-24) * 1.001 * (norm(momentum.iter().copied()) + f64::from(lr) * wide(&gradient));
        let mut coefficients = exact(&momentum, 64, false);
        for block in coefficients.chunks_mut(4096) {
            let mut magnitudes: Vec<f64> = block.iter().map(|v| v.abs()).collect();
            magnitudes.sort_by(|a, b| b.total_cmp(a));
            let gap = magnitudes[k - 1] - magnitudes[k];
            assert!(gap > 2.0 * added, "step {step}: a gap of {gap}, and {added}: a tie, take another seed");
            block.iter_mut().filter(|v| v.abs() <= magnitudes[k]).for_each(|v| *v = 0.0);
        }
        let sent = exact(&coefficients, 64, true);
        momentum.iter_mut().zip(&sent).for_each(|(m, q)| *m -= q);
        let mut mean = gradient.clone();
        compressor.exchange(&device, &mut group, &mut mean).expect("it runs");
        let most = added + bound(12) * (norm(sent.iter().copied()) + added);
        let off = norm(mean.iter().zip(&sent).map(|(a, b)| f64::from(*a) - b));
        assert!(off <= most, "step {step}: off by {off}, {most} allowed");
        let most = added;
        let kept: Vec<f64> = compressor.residual().expect("idle").iter().copied().map(f64::from).collect();
        let kept = exact(&kept, 64, true);
        let off = norm(kept.iter().zip(&momentum).map(|(a, b)| a - b));
        assert!(off <= most, "step {step}: the momentum is off by {off}, {most} allowed");
    }
}

/// An exchange is the transform, the codec and its transform back, with other tensors between those of the recipe.
#[test]
fn an_exchange_is_its_stages_one_after_another() {
    let device = Device::cpu();
    let policy = Policy::new("dct:block=8+qsgd:bits=4,bucket=64").expect("valid").small(100);
    let tensors = [Tensor::new("a", [30, 10]), Tensor::new("b", [40]), Tensor::new("c", [500])];
    let x = normal(840, 3);
    let mut group = Threads::group(1).expect("one").remove(0);
    let mut compressor = Compressor::with_policy(&policy, &tensors, 9).expect("valid");
    let mut mean = x.clone();
    compressor.exchange(&device, &mut group, &mut mean).expect("it runs");
    let packed: Vec<f32> = x[..300].iter().chain(&x[340..]).copied().collect();
    let y = device.dct(Dct::block(8), &packed).expect("valid");
    let codec = gradwire::Qsgd::bits(4).bucket(64);
    let mut decoded = Vec::new();
    for (index, part) in [&y[..300], &y[300..]].into_iter().enumerate() {
        let payload = device.encode(&codec, part, Seed::new(9).tensor(index as u32)).expect("valid");
        decoded.extend(device.decode(&payload).expect("its own"));
    }
    let expected = device.inverse_dct(Dct::block(8), &decoded).expect("valid");
    assert_eq!(bits(&mean[..300]), bits(&expected[..300]));
    assert_eq!(bits(&mean[300..340]), bits(&x[300..340]), "it goes uncompressed");
    assert_eq!(bits(&mean[340..]), bits(&expected[300..]));
}

/// What is not finite is refused by its number in the gradient, or skips the step, and changes nothing.
#[test]
fn a_nan_is_refused_before_it_is_spread() {
    let texts = ["dct+topk:0.1+ef+finite", "dct+topk:k=4,block=64+ef:beta=0.5", "dct+qsgd:bits=8,bucket=64+finite"];
    for text in texts.into_iter().chain(["dct:block=16,tiles+topk:0.1+ef+finite"]) {
        let mut group = Threads::group(1).expect("one").remove(0);
        let mut compressor = Compressor::new(text, [[64, 64]], 1).expect(text);
        compressor.exchange(&Device::cpu(), &mut group, &mut normal(4096, 1)).expect("finite");
        let (mut x, state) = (normal(4096, 2), compressor.state().expect("idle"));
        x[77] = f32::NAN;
        let given = bits(&x);
        let done = compressor.exchange(&Device::cpu(), &mut group, &mut x);
        if !text.ends_with("finite") {
            done.expect("it is skipped");
            assert!(x.iter().all(|mean| mean.is_nan()), "{text}");
            compressor.undo().expect("a step was skipped");
            assert!(compressor.state().expect("idle") == state, "{text}");
            continue;
        }
        let error = done.expect_err("a NaN");
        assert!(matches!(error, Error::NotFinite { index: 77 }), "{text}: {error:?}");
        assert!(bits(&x) == given && compressor.state().expect("idle") == state, "{text}");
        // A sum that overflows is found among the coefficients, and changes nothing either.
        let mut x = vec![f32::MAX; 4096];
        let error = compressor.exchange(&Device::cpu(), &mut group, &mut x).expect_err("too large");
        assert!(matches!(error, Error::NotFinite { .. }), "{text}: {error:?}");
        assert!(x.iter().all(|v| *v == f32::MAX) && compressor.state().expect("idle") == state, "{text}");
    }
}

/// Smooth gradients have few coefficients: as many entries hold more of them than of the elements.
#[test]
fn a_smooth_gradient_is_sent_by_few_coefficients() {
    let n = 4096 * 4;
    let x: Vec<f32> = (0..n).map(|i| ((i % 64) as f32 / 20.0).sin() + ((i / 64 % 64) as f32 / 30.0).cos()).collect();
    let error = |text: &str| {
        let mut group = Threads::group(1).expect("one").remove(0);
        let mut mean = x.clone();
        let mut compressor = Compressor::new(text, [[128, n as u64 / 128]], 1).expect(text);
        compressor.exchange(&Device::cpu(), &mut group, &mut mean).expect("it runs");
        norm(mean.iter().zip(&x).map(|(a, b)| f64::from(a - b)))
    };
    let (plain, behind) = (error("topk:k=32,block=4096"), error("dct+topk:k=32,block=4096"));
    assert!(behind * 20.0 < plain, "{behind} behind a transform, {plain} without");
}

/// Tensors around tiles: a vector of odd length, a matrix of whole tiles alone, one with edges on both sides, one that
/// is lower than a tile, and one of four dimensions.
const AROUND: [&[u64]; 6] = [&[7], &[128, 192], &[70, 131], &[3, 100], &[66, 13, 5, 1], &[1]];

/// Their elements.
const ODD: usize = 7 + 128 * 192 + 70 * 131 + 300 + 66 * 65 + 1;

/// A compressor of these tensors by one recipe.
fn compressor(text: &str) -> Compressor {
    let tensors = AROUND.iter().enumerate().map(|(i, shape)| Tensor::new(format!("{i}"), *shape)).collect::<Vec<_>>();
    let policy = Policy::new(text).expect(text).small(0);
    Compressor::with_policy(&policy, &tensors, 5).expect(text)
}

/// A step of one rank.
fn step(compressor: &mut Compressor, device: &Device, x: &mut [f32]) {
    let mut group = Threads::group(1).expect("one").remove(0);
    compressor.exchange(device, &mut group, x).expect("it runs");
}

/// The place of each element of the order of tiles, as the tensors lie: as `Dct::tiles` describes it.
fn order(shapes: &[&[u64]], side: usize) -> Vec<usize> {
    let (mut tiles, mut rest, mut base) = (Vec::new(), Vec::new(), 0);
    for shape in shapes {
        let (rows, columns) = (shape[0] as usize, shape[1..].iter().product::<u64>() as usize);
        let (down, beside) = (rows / side, columns / side);
        for (a, b) in (0..down).flat_map(|a| (0..beside).map(move |b| (a, b))) {
            let tile = (0..side).flat_map(|i| (0..side).map(move |j| (a * side + i, b * side + j)));
            tiles.extend(tile.map(|(i, j)| base + i * columns + j));
        }
        let tiled = if beside > 0 { down * side } else { 0 };
        for row in 0..tiled {
            rest.extend((beside * side..columns).map(|column| base + row * columns + column));
        }
        rest.extend(base + tiled * columns..base + rows * columns);
        base += rows * columns;
    }
    [tiles, rest].concat()
}

/// An exchange is that of the order without tiles, and what it leaves lies where the tensors do.
#[test]
fn an_exchange_of_tiles_is_that_of_their_order() {
    let device = Device::cpu();
    for side in [2, 8, 64] {
        let order = order(&AROUND, side);
        let text = format!("topk:k=4,block={},clamped+ef:beta=0.5", side * side);
        let mut of_tiles = compressor(&format!("dct:block={side},tiles+{text}"));
        let mut plain = compressor(&format!("dct:block={side}+{text}"));
        let mut as_they_lie = compressor(&format!("dct:block={side}+{text}"));
        for at in 0..3 {
            let x = normal(ODD, 20 + at);
            let mut ordered: Vec<f32> = order.iter().map(|place| x[*place]).collect();
            let (mut mean, mut other) = (x.clone(), x);
            step(&mut of_tiles, &device, &mut mean);
            step(&mut plain, &device, &mut ordered);
            step(&mut as_they_lie, &device, &mut other);
            let found: Vec<f32> = order.iter().map(|place| mean[*place]).collect();
            same(&format!("side {side}"), &found, &ordered);
            let residuals = [&of_tiles, &plain].map(|c| bits(&c.residual().expect("idle")));
            assert!(residuals[0] == residuals[1], "side {side}: coefficients lie in their order");
            assert!(bits(&mean) != bits(&other), "side {side}: without tiles it is another one");
        }
    }
}

/// What is constant over each tile is one coefficient of each, and more as it lies.
#[test]
fn a_constant_of_each_tile_is_one_coefficient() {
    let x: Vec<f32> = (0..128 * 192).map(|i| ((i / 192 / 64 * 3 + i % 192 / 64) as f32 - 2.25) * 0.5).collect();
    let error = |text: &str| {
        let mut mean = x.clone();
        step(&mut Compressor::new(text, [[128, 192]], 1).expect(text), &Device::cpu(), &mut mean);
        norm(mean.iter().zip(&x).map(|(a, b)| f64::from(a - b)))
    };
    // A quarter times 4096 / 64, and back: exact.
    assert_eq!(error("dct:tiles+topk:k=1,block=4096"), 0.0);
    let wide = norm(x.iter().copied().map(f64::from));
    // A fifth of the energy, of the three values that every 192 elements in a line have.
    assert!(error("dct+topk:k=1,block=4096") > 0.4 * wide);
}

/// All coefficients give the gradient to the stated bound, and what is sent and what is kept have its norm.
#[test]
fn tiles_there_and_back_are_the_gradient() {
    let x = normal(ODD, 9);
    let wide = norm(x.iter().copied().map(f64::from));
    for side in SIDES {
        let each = bound(2 * side.ilog2());
        let mut mean = x.clone();
        step(&mut compressor(&format!("dct:block={side},tiles+topk:1")), &Device::cpu(), &mut mean);
        let off = norm(mean.iter().zip(&x).map(|(a, b)| f64::from(*a) - f64::from(*b)));
        assert!(off <= 2.0 * each * wide, "side {side}: off by {off}");
        let (mut sent, mut half) = (x.clone(), compressor(&format!("dct:block={side},tiles+topk:0.1+ef")));
        step(&mut half, &Device::cpu(), &mut sent);
        let kept = half.residual().expect("idle");
        let both = norm(sent.iter().chain(&kept).copied().map(f64::from));
        assert!((both - wide).abs() <= 2.0 * each * wide, "side {side}: {wide} became {both}");
    }
}

/// A vector before a matrix, and the matrix.
const VECTOR: usize = 7;
const ROWS: usize = 128;
const COLUMNS: usize = 192;

/// What DeMo sends and keeps of them in a step.
struct Demo {
    gradient: Vec<f32>,
    /// What is sent, of the elements.
    sent: Vec<f64>,
    /// The coefficients of the momentum, square by square, and whether each is sent.
    coefficients: Vec<(f64, bool)>,
    /// What the compressor's momentum may be off by: of each square, and of the vector.
    added: Vec<f64>,
}

/// Where the elements of the squares lie, and those of the vector.
fn squares() -> Vec<Vec<usize>> {
    let square = |(a, b): (usize, usize)| {
        (0..4096).map(|i| VECTOR + (64 * a + i / 64) * COLUMNS + 64 * b + i % 64).collect::<Vec<_>>()
    };
    let all = (0..ROWS / 64).flat_map(|a| (0..COLUMNS / 64).map(move |b| (a, b)));
    all.map(square).chain([(0..VECTOR).collect()]).collect()
}

/// DeMo's algorithm 1 in binary64, of squares of a matrix's rows and columns, with a vector before them, all of which
/// is sent; none if a coefficient is so near to the threshold that the compressor may send another one.
fn demo(k: usize, beta: f32, lr: f32, seeds: std::ops::Range<u64>) -> Option<Vec<Demo>> {
    let (n, squares) = (VECTOR + ROWS * COLUMNS, squares());
    let (mut momentum, mut added, mut steps) = (vec![0.0f64; n], vec![0.0; squares.len()], Vec::new());
    for seed in seeds {
        let gradient = normal(n, seed);
        for (m, g) in momentum.iter_mut().zip(&gradient) {
            *m = f64::from(beta) * *m + f64::from(lr) * f64::from(*g);
        }
        let (mut sent, mut coefficients) = (momentum.clone(), Vec::new());
        for (places, added) in squares.iter().zip(&mut added) {
            let square: Vec<f64> = places.iter().map(|i| momentum[*i]).collect();
            let wide = f64::from(lr) * norm(places.iter().map(|i| f64::from(gradient[*i])));
            *added += bound(12) * wide + 3.0 * 2f64.powi(-24) * 1.001 * (norm(square.iter().copied()) + wide);
            if places.len() == VECTOR {
                continue;
            }
            let mut of_square = exact(&square, 64, false);
            let mut magnitudes: Vec<f64> = of_square.iter().map(|v| v.abs()).collect();
            magnitudes.sort_by(|a, b| b.total_cmp(a));
            if magnitudes[k - 1] - magnitudes[k] <= 2.0 * *added {
                return None;
            }
            coefficients.extend(of_square.iter().map(|v| (*v, v.abs() > magnitudes[k])));
            of_square.iter_mut().filter(|v| v.abs() <= magnitudes[k]).for_each(|v| *v = 0.0);
            places.iter().zip(exact(&of_square, 64, true)).for_each(|(i, v)| sent[*i] = v);
        }
        momentum.iter_mut().zip(&sent).for_each(|(m, q)| *m -= q);
        steps.push(Demo { gradient, sent, coefficients, added: added.clone() });
    }
    Some(steps)
}

/// As the test of one square above: the same places, and values within the bound.
#[test]
fn it_is_demo_of_the_squares_of_a_matrix() {
    let (k, beta, lr) = (32, 0.999f32, 0.5f32);
    let text = format!("dct:tiles+topk:k={k},block=4096,clamped+ef:beta={beta},gamma={lr}");
    let tensors = [Tensor::new("bias", [VECTOR as u64]), Tensor::new("weight", [ROWS as u64, COLUMNS as u64])];
    let policy = Policy::new(text).expect("valid").small(0);
    let mut compressor = Compressor::with_policy(&policy, &tensors, 5).expect("valid");
    let steps =
        (0..100).find_map(|run| demo(k, beta, lr, DEMO + 10 * run..DEMO + 10 * run + 3)).expect("not all have ties");
    assert_eq!(steps.len(), 3);
    for (at, Demo { gradient, sent, coefficients, added }) in steps.into_iter().enumerate() {
        let mut mean = gradient;
        step(&mut compressor, &Device::cpu(), &mut mean);
        let kept = compressor.residual().expect("idle");
        assert!(coefficients.iter().zip(&kept).all(|((_, sent), kept)| *sent == (*kept == 0.0)), "step {at}: others");
        assert!(kept[coefficients.len()..].iter().all(|v| *v == 0.0), "step {at}: the vector is sent whole");
        for ((coefficients, kept), added) in coefficients.chunks(4096).zip(kept.chunks(4096)).zip(&added) {
            let left = |y: &f64, sent: &bool| if *sent { 0.0 } else { *y };
            let off = norm(coefficients.iter().zip(kept).map(|((y, sent), kept)| left(y, sent) - f64::from(*kept)));
            assert!(off <= *added, "step {at}: what is kept is off by {off}, {added} allowed");
        }
        let added = norm(added);
        let most = added + bound(12) * (norm(sent.iter().copied()) + added);
        let off = norm(mean.iter().zip(&sent).map(|(a, b)| f64::from(*a) - b));
        assert!(off <= most, "step {at}: off by {off}, {most} allowed");
    }
}
