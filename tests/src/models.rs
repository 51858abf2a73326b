//! Many tensors at once: every tensor's payload is the one that the CPU makes of it alone.

use gradwire::{DecodeMode, Device, Error, Gradient, Layout, NonFinite, Payload, Qsgd, Seed, TensorSpan};
use half::{bf16, f16};

use crate::cases::{self, Case, Quantizer};
use crate::conformance::{Outcome, differ};
use crate::oracle::Kind;

/// The shapes of the 161 tensors of ResNet-50 (He et al., 2016, table 1, with a fully connected layer of 1000 classes).
pub fn resnet50() -> Vec<Vec<u64>> {
    let norm = |channels: u64| [vec![channels], vec![channels]];
    let mut shapes = vec![vec![64, 3, 7, 7]];
    shapes.extend(norm(64));
    let mut before = 64;
    for (blocks, width) in [(3, 64), (4, 128), (6, 256), (3, 512)] {
        for block in 0..blocks {
            for (out, into, side) in [(width, before, 1), (width, width, 3), (4 * width, width, 1)] {
                shapes.push(vec![out, into, side, side]);
                shapes.extend(norm(out));
            }
            if block == 0 {
                shapes.push(vec![4 * width, before, 1, 1]);
                shapes.extend(norm(4 * width));
            }
            before = 4 * width;
        }
    }
    shapes.extend([vec![1000, 2048], vec![1000]]);
    shapes
}

/// The same 161 tensors with a sixteenth of the channels, for what interprets every instruction; and some that are
/// empty.
pub fn narrow_resnet50() -> Layout {
    let narrow = |shape: Vec<u64>| shape.iter().map(|side| if *side < 16 { *side } else { side / 16 }).product::<u64>();
    let mut lengths: Vec<u64> = resnet50().into_iter().map(narrow).collect();
    [0, 20, 100].into_iter().for_each(|at| lengths.insert(at, 0));
    Layout::packed(lengths).unwrap_or_else(|e| panic!("{e}"))
}

/// Tensors of every awkward length: empty, one element, around units and spans, apart and out of order.
pub fn awkward() -> Layout {
    let lengths = [0u64, 1, 255, 256, 257, 8191, 8192, 8193, 3, 0, 20_000, 31];
    let mut spans = Vec::new();
    let mut offset = 5;
    for (index, elements) in lengths.into_iter().enumerate() {
        spans.push(TensorSpan { offset, elements });
        // Gaps of every parity, so that halves begin within words.
        offset += elements + [0, 1, 7, 130][index % 4];
    }
    spans.reverse();
    // A layout that overlaps nothing is never refused.
    Layout::new(spans).unwrap_or_else(|e| panic!("{e}"))
}

fn failed(label: &str) -> impl Fn(Error) -> String + '_ {
    move |e| format!("{label}: {e}")
}

/// Settings that the kernels tell apart.
pub fn settings() -> Vec<Case> {
    let contractive = |case| Case { contractive: true, ..case };
    vec![
        contractive(Case::new(Kind::QsgdL2, 3, Some(32))),
        Case::new(Kind::QsgdMax, 8, Some(512)),
        contractive(Case::new(Kind::QsgdMax, 4, Some(8192))),
        contractive(Case::new(Kind::Uniform, 5, Some(64))),
        Case::new(Kind::UniformNearest, 8, Some(2048)),
        Case::new(Kind::Quantile, 5, Some(1024)),
        Case::new(Kind::Eden, 3, Some(64)),
        contractive(Case::new(Kind::QsgdL2, 4, None)),
        contractive(Case::new(Kind::QsgdMax, 3, None)),
        contractive(Case::new(Kind::Uniform, 8, None)),
    ]
}

/// Normal values, of another scale in every tensor: neighbours that would be taken for one another differ in their
/// statistics. One tensor is zero, one subnormal, one holds a NaN, one an infinity.
fn scaled(layout: &Layout, run: u64) -> Vec<f32> {
    let mut x = cases::normal(layout.elements() as usize, run);
    for (index, span) in layout.spans().iter().enumerate().filter(|(_, span)| span.elements > 0) {
        let own = &mut x[span.offset as usize..span.end() as usize];
        let scale = [1.0, 1e-40, 3.0, 0.0, 1e30, 1e-3, 0.7, 20.0][index % 8];
        own.iter_mut().for_each(|v| *v *= scale);
        let last = own.len() - 1;
        match index % 16 {
            6 => own[last / 2] = f32::NAN,
            8 => own[last] = f32::NEG_INFINITY,
            _ => {}
        }
    }
    x
}

fn part<'a>(gradient: &Gradient<'a>, span: TensorSpan) -> Gradient<'a> {
    let range = span.offset as usize..span.end() as usize;
    match gradient {
        Gradient::F32(x) => Gradient::F32(&x[range]),
        Gradient::F16(x) => Gradient::F16(&x[range]),
        Gradient::Bf16(x) => Gradient::Bf16(&x[range]),
    }
}

/// Encode of every type, with and without feedback if there is one, and every decode, against one tensor after
/// another on the CPU.
pub fn against_cpu(device: &Device, case: &Case, layout: &Layout) -> Outcome {
    let n = layout.elements() as usize;
    let x = if case.bucket.is_none() { scaled(layout, 77) } else { cases::normal(n, 77) };
    let f16s: Vec<f16> = x.iter().map(|v| f16::from_f32(*v)).collect();
    let bf16s: Vec<bf16> = x.iter().map(|v| bf16::from_f32(*v)).collect();
    let mut compared = 0;
    for gradient in [Gradient::F32(&x), Gradient::F16(&f16s), Gradient::Bf16(&bf16s)] {
        // EDEN takes no feedback.
        for feedback in [false, true].into_iter().filter(|feedback| !feedback || case.kind != Kind::Eden) {
            let label = format!(
                "{}, {} tensors of {}, feedback {feedback}",
                case.label(),
                layout.spans().len(),
                gradient.dtype().name()
            );
            compared += one(device, case, layout, gradient, feedback, &label)?;
        }
    }
    Ok(compared)
}

fn one(device: &Device, case: &Case, layout: &Layout, gradient: Gradient<'_>, feedback: bool, label: &str) -> Outcome {
    let (cpu, codec, fail) = (Device::cpu(), case.codec(), failed(label));
    let seed = Seed::new(3).step((1 << 33) + 7).tensor(u32::MAX - 1);
    let plan = device.model_plan(&codec, layout, gradient.dtype()).map_err(&fail)?;
    let plan = if feedback { plan.with_feedback().map_err(&fail)? } else { plan };
    let before = if feedback { cases::normal(gradient.len(), 78) } else { Vec::new() };
    let mut residual = before.clone();
    let got = device.encode_model(&plan, gradient, &mut residual, seed).map_err(&fail)?;
    let mut expected_residual = before;
    let mut expected = Vec::new();
    for (index, span) in layout.spans().iter().enumerate() {
        let tensor = (u32::MAX - 1).wrapping_add(index as u32);
        let (seed, own) = (seed.tensor(tensor), part(&gradient, *span));
        expected.push(if feedback {
            let range = span.offset as usize..span.end() as usize;
            cpu.encode_with_feedback(&codec, own, &mut expected_residual[range], seed).map_err(&fail)?
        } else {
            cpu.encode(&codec, own, seed).map_err(&fail)?
        });
    }
    for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
        differ(&format!("payload {index}"), label, got.as_bytes(), expected.as_bytes())?;
    }
    differ("residual", label, bytemuck::cast_slice(&residual), bytemuck::cast_slice(&expected_residual))?;
    let workers: [&[Payload]; 3] = [&got, &expected, &got];
    let start = cases::normal(gradient.len(), 79);
    for (mode, count) in [(DecodeMode::Write, 1), (DecodeMode::Add(-0.3), 1), (DecodeMode::Sum(0.25), 3)] {
        let (mut output, mut sums) = (start.clone(), start.clone());
        device.decode_model(&plan, mode, &workers[..count], &mut output).map_err(&fail)?;
        for (index, span) in layout.spans().iter().enumerate() {
            let own = &mut sums[span.offset as usize..span.end() as usize];
            match mode {
                DecodeMode::Write => cpu.decode_into(&expected[index], own),
                DecodeMode::Add(w) => cpu.decode_add(&expected[index], w, own),
                DecodeMode::Sum(w) => cpu.decode_sum(&[(); 3].map(|()| expected[index].clone()), w, own),
            }
            .map_err(&fail)?;
        }
        differ(&format!("{mode:?}"), label, bytemuck::cast_slice(&output), bytemuck::cast_slice(&sums))?;
    }
    Ok(got.len() as u64 + 4)
}

/// The policy that refuses what is not finite names the element of the flat gradient, looks at no gap, and leaves all
/// residuals as they were.
pub fn refuses_not_finite(device: &Device) -> Outcome {
    let small = Qsgd::bits(8).non_finite(NonFinite::Error);
    let whole = small.whole_tensor().contractive();
    Ok(refuses(device, small, "many tensors under NonFinite::Error")?
        + refuses(device, whole, "many tensors of one bucket each under NonFinite::Error")?)
}

fn refuses(device: &Device, codec: Qsgd, label: &str) -> Outcome {
    let layout = awkward();
    let fail = failed(label);
    let codec = Quantizer::Qsgd(codec);
    let plan = device.model_plan(&codec, &layout, gradwire::Dtype::F32).map_err(&fail)?;
    let plan = plan.with_feedback().map_err(&fail)?;
    let n = layout.elements() as usize;
    let mut x = cases::normal(n, 5);
    let is_gap = |i: &usize| !layout.spans().iter().any(|s| (s.offset..s.end()).contains(&(*i as u64)));
    (0..n).filter(is_gap).for_each(|gap| x[gap] = f32::NAN);
    let before = cases::normal(n, 6);
    let mut residual = before.clone();
    device.encode_model(&plan, &x, &mut residual, Seed::new(1)).map_err(&fail)?;
    // The first tensor of the list is the last one in memory.
    let (first, last) = (layout.spans()[0], layout.spans()[1]);
    for (span, within) in [(first, 30), (last, 19_999)] {
        let bad = span.offset + within.min(span.elements - 1);
        let mut x = x.clone();
        x[bad as usize] = f32::NEG_INFINITY;
        let mut residual = before.clone();
        match device.encode_model(&plan, &x, &mut residual, Seed::new(1)) {
            Err(Error::NotFinite { index }) if index == bad => {}
            other => return Err(format!("{label}: element {bad} is infinite, and the encode gave {other:?}")),
        }
        differ("residual", label, bytemuck::cast_slice(&residual), bytemuck::cast_slice(&before))?;
    }
    Ok(4)
}
