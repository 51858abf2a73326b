//! The shaders' arithmetic, operation by operation: `common/soft.wgsl` against the CPU's, over pairs chosen to be hard.

use gradwire::wgpu;
use gradwire_kernels::arith::round::fraction_bits;
use gradwire_kernels::arith::{qsgd, uniform};
use gradwire_tests::caller::{Caller, EVERY};

const NAN: u32 = 0x7fc0_0000;

/// An operation of two words.
struct Operation<'a> {
    /// The module that has it.
    source: String,
    /// What is written for the words `a` and `b`, four at a time.
    wgsl: String,
    right: &'a dyn Fn(u32, u32) -> u32,
    /// Parts of the module, and what may stand in their place.
    harmless: &'a [&'a [Change]],
    /// Changes that must be found.
    faults: &'a [&'a [Change]],
}

/// A part of a module, and what is written in its place.
type Change = (&'static str, &'static str);

fn source(shader: &str) -> String {
    gradwire_shaders::shader(shader).expect("it is in the table").source.to_owned()
}

fn changed(source: &str, changes: &[Change]) -> String {
    changes.iter().fold(source.to_owned(), |source, (from, to)| {
        assert_eq!(source.matches(from).count(), 1, "{from}");
        source.replace(from, to)
    })
}

fn f32s(a: u32, b: u32, of: fn(f32, f32) -> f32) -> u32 {
    let result = of(f32::from_bits(a), f32::from_bits(b));
    if result.is_nan() { NAN } else { result.to_bits() }
}

/// Numbers of every kind of both signs: zeros, subnormal ones, powers of two and their neighbours, infinities and NaNs;
/// and some without a pattern.
fn hard() -> Vec<u32> {
    let exponents = (0..=2).chain(20..=30).chain(100..=154).chain(224..=234).chain(250..=255);
    let fractions = [0u32, 1, 2, 3, 0x3f_ffff, 0x40_0000, 0x40_0001, 0x7f_fffe, 0x7f_ffff];
    let mut all: Vec<u32> = exponents
        .flat_map(|exponent: u32| fractions.map(|fraction| exponent << 23 | fraction))
        .flat_map(|magnitude| [magnitude, magnitude | 1 << 31])
        .collect();
    let mut state = 0x9e37_79b9u32;
    while !all.len().is_multiple_of(4) || all.len() < 2048 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Exponents close to each other, so that sums and differences have places in common.
        all.push(if all.len().is_multiple_of(2) {
            state
        } else {
            (state & 0x807f_ffff) | (120 + (state >> 8) % 16) << 23
        });
    }
    all
}

/// What a shader makes of all pairs, those of `a[0]` first.
fn run(caller: &Caller, source: &str, wgsl: &str, a: &[u32], b: &[u32]) -> Vec<u32> {
    let source = format!(
        "{source}
         @group(0) @binding(20) var<storage, read> first: array<u32>;
         @group(0) @binding(21) var<storage, read> second: array<vec4<u32>>;
         @group(0) @binding(22) var<storage, read_write> results: array<vec4<u32>>;
         @compute @workgroup_size(64)
         fn pairs(@builtin(global_invocation_id) id: vec3<u32>) {{
             if id.x < arrayLength(&second) {{
                 let a = vec4<u32>(first[id.y]);
                 let b = second[id.x];
                 results[id.y * arrayLength(&second) + id.x] = {wgsl};
             }}
         }}"
    );
    let device = &caller.device;
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(source.into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("pairs"),
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });
    let holding = |words: &[u32]| {
        let buffer = caller.room(size_of_val(words) as u64, EVERY);
        caller.write(&buffer, bytemuck::cast_slice(words));
        buffer
    };
    let bytes = (a.len() * b.len() * 4) as u64;
    let buffers = [holding(a), holding(b), caller.room(bytes, EVERY)];
    let entries =
        [0, 1, 2].map(|at| wgpu::BindGroupEntry { binding: 20 + at as u32, resource: buffers[at].as_entire_binding() });
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &entries,
    });
    let mut encoder = caller.encoder();
    {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups((b.len() as u32 / 4).div_ceil(64), a.len() as u32, 1);
    }
    caller.queue.submit([encoder.finish()]);
    bytemuck::pod_collect_to_vec(&caller.read(&buffers[2], 0..bytes))
}

/// The first pairs whose result is not right, and how many there are.
fn wrong(operation: &Operation<'_>, found: &[u32], a: &[u32], b: &[u32]) -> (usize, Vec<String>) {
    assert_eq!(found.len(), a.len() * b.len());
    let pairs = a.iter().flat_map(|&a| b.iter().map(move |&b| (a, b)));
    let wrong: Vec<_> = pairs.zip(found).filter(|&((a, b), &found)| (operation.right)(a, b) != found).collect();
    let told = wrong
        .iter()
        .take(8)
        .map(|((a, b), found)| format!("{a:08x} and {b:08x}: {found:08x}, not {:08x}", (operation.right)(*a, *b)));
    (wrong.len(), told.collect())
}

fn check(operation: &Operation<'_>, a: &[u32], b: &[u32]) {
    let Some(caller) = Caller::open() else { return };
    let found = |source: &str| wrong(operation, &run(&caller, source, &operation.wgsl, a, b), a, b);
    let (count, told) = found(&operation.source);
    assert_eq!(count, 0, "{}: {told:#?}", operation.wgsl);
    for change in operation.harmless {
        let (count, told) = found(&changed(&operation.source, change));
        assert_eq!(count, 0, "{} with {change:?}: {told:#?}", operation.wgsl);
    }
    for fault in operation.faults {
        let (count, _) = found(&changed(&operation.source, fault));
        assert!(count > 0, "{}: {fault:?} is not found", operation.wgsl);
    }
}

#[test]
fn sums_are_those_of_the_cpu() {
    let operation = Operation {
        source: source("sparse_scatter"),
        wgsl: "f_add(a, b)".to_owned(),
        right: &|a, b| f32s(a, b, |a, b| a + b),
        harmless: &[],
        faults: &[
            // Bits that are lost, a tie, a subnormal result, the sign of nothing, and what is not finite.
            &[("cut | min(fl - (cut << apart), one)", "cut")],
            &[("vec4<u32>(63u) + ((settled >> seven) & one)", "vec4<u32>(64u)")],
            &[("min(countLeadingZeros(total) - one, eh)", "(countLeadingZeros(total) - one)")],
            &[("a & b & sign, total", "a & sign, total")],
            &[("(low == inf) & (minus", "(low == inf) & (sum")],
        ],
    };
    let numbers = hard();
    check(&operation, &numbers, &numbers);
}

#[test]
fn products_are_those_of_the_cpu() {
    let operation = Operation {
        source: source("sparse_scatter"),
        wgsl: "f_mul(a, b)".to_owned(),
        right: &|a, b| f32s(a, b, |a, b| a * b),
        harmless: &[],
        faults: &[&[("head | (rest >> cut) | ones(lost)", "head | (rest >> cut)")]],
    };
    let numbers = hard();
    check(&operation, &numbers, &numbers);
}

#[test]
fn products_with_a_code_are_those_of_the_cpu() {
    let operation = Operation {
        source: source("sparse_scatter"),
        wgsl: "min(scale_by_byte(a, b), vec4<u32>(INF))".to_owned(),
        right: &|step, k| (f32::from_bits(step) * k as f32).to_bits(),
        harmless: &[],
        faults: &[
            &[("vec4<u32>(127u) + (cut & one)", "vec4<u32>(128u)")],
            &[("(exact == vec4<u32>(0u)) | (step", "(step == step) & (step")],
        ],
    };
    // Steps are normal numbers, or zero, without a sign.
    let steps: Vec<u32> =
        hard().into_iter().filter(|step| *step == 0 || (1 << 23..0xff << 23).contains(step)).collect();
    let codes: Vec<u32> = (0..256).collect();
    check(&operation, &steps, &codes);
}

/// WGSL lets a product in f32 be either of its neighbours. These make it one that is wrong, as another adapter might.
const ROUNDED_UP: Change = ("bitcast<vec4<f32>>(inverse))", "bitcast<vec4<f32>>(inverse + 1u))");
const ROUNDED_DOWN: Change = ("bitcast<vec4<f32>>(inverse))", "bitcast<vec4<f32>>(inverse - 1u))");
/// The same of the difference from the minimum.
const ABOVE_UP: Change = ("= bitcast<vec4<u32>>(bitcast", "= vec4<u32>(1u) + bitcast<vec4<u32>>(bitcast");

/// A module of a codec with its parameters written into it.
fn with_parameters(shader: &str, bits: u32, levels: u32, fraction: u32) -> String {
    source(shader)
        .replace("params.bits", &format!("{bits}u"))
        .replace("params.levels", &format!("{levels}u"))
        .replace("params.fraction", &format!("{fraction}u"))
}

/// Values from `low` to `high`, both among them.
fn values(low: f32, high: f32) -> Vec<u32> {
    let within = (0..250).map(|i| low + (high - low) * (i as f32 * 0.618_034).fract());
    let ends = [low, high, 0.0f32.clamp(low, high), f32::from_bits(3).clamp(low, high), low + (high - low) / 7.0];
    within.chain(ends).map(|x| x.clamp(low, high).to_bits()).collect()
}

/// Dithers with which some value of fixed point is just below a level, at it or just above; the least; the greatest.
fn dithers(fixed: &[u32], fraction: u32) -> Vec<u32> {
    let mask = (1 << fraction) - 1;
    let near = fixed
        .iter()
        .flat_map(|fixed| [-300, -1, 0, 1, 300].map(|by| 0u32.wrapping_sub(*fixed).wrapping_add_signed(by)));
    let mut all: Vec<u32> = near.map(|dither| dither & mask).chain([0, 1, mask / 2, mask]).collect();
    all.resize(all.len().next_multiple_of(4), mask);
    all
}

#[test]
fn levels_are_those_of_the_cpu_however_f32_is_rounded() {
    for (bits, norm) in [(2, 1.7f32), (4, 3.0e-17), (4, 1.5e38), (8, 0.3), (16, 1.1)] {
        let levels = (1 << (bits - 1)) - 1;
        let fraction = fraction_bits(levels);
        let encoder = qsgd::Encoder::new(norm, levels, fraction, 1.0);
        let a = values(-norm, norm);
        let fixed: Vec<u32> = a.iter().map(|a| (f32::from_bits(a << 1 >> 1) * encoder.inverse) as u32).collect();
        let operation = Operation {
            source: with_parameters("qsgd_encode", bits, levels, fraction),
            wgsl: format!("code(repeated(vec4<u32>({}u, 0u, 0xffffffffu, 0u)), a, b)", encoder.inverse.to_bits()),
            // SAFETY: the values are at most the norm, and the dithers below 2^fraction.
            right: &|value, dither| unsafe { encoder.code::<true>(value, dither, fraction, levels, bits) },
            harmless: &[&[ROUNDED_UP], &[ROUNDED_DOWN]],
            faults: &[&[ROUNDED_UP, ("= unsure(sum) |", "= (sum != sum) |")]],
        };
        check(&operation, &a, &dithers(&fixed, fraction));
    }
}

#[test]
fn uniform_levels_are_those_of_the_cpu_however_f32_is_rounded() {
    for (bits, low, high) in [(1, -0.3f32, 1.7f32), (4, 1000.0, 1000.25), (4, -3.0e-17, 1.0e-38), (8, -0.1, 0.4)] {
        let levels = (1 << bits) - 1;
        let fraction = fraction_bits(levels);
        let encoder = uniform::Encoder::new(low, high, levels, fraction, 1.0);
        assert_eq!(encoder.lift, 1.0);
        let a = values(low, high);
        let fixed: Vec<u32> = a.iter().map(|a| ((f32::from_bits(*a) - low) * encoder.inverse) as u32).collect();
        let of = [encoder.lift, encoder.low, encoder.inverse].map(f32::to_bits);
        let operation = Operation {
            source: with_parameters("uniform_encode", bits, levels, fraction),
            wgsl: format!("code(repeated(vec4<u32>({}u, {}u, {}u, 0xffffffffu)), a, b)", of[0], of[1], of[2]),
            // SAFETY: the values are of the range, and the dithers below 2^fraction.
            right: &|value, dither| unsafe { encoder.code(value, dither, fraction, levels) },
            harmless: &[&[ROUNDED_UP, ABOVE_UP], &[ROUNDED_DOWN]],
            faults: &[&[ROUNDED_UP, ("= unsure(sum);", "= sum != sum;")]],
        };
        check(&operation, &a, &dithers(&fixed, fraction));
    }
}
