//! Decodes whose setting has kernels of its own, or a way of its own in its codec's kernel, beside the CPU, on the PTX
//! machine: which they are is the backend's own business, and every bit must be the same.

use std::sync::Arc;

use gradwire::backend::cuda::Cuda;
use gradwire::{DecodeMode, Device, Dtype, Layout, OneBit, Payload, Qsgd, Seed, Sign, Ternary, Uniform};
use gradwire_ptx_machine::Machine;
use gradwire_tests::cases::{Quantizer, normal};

/// The sm_80 and sm_90 texts: each has its own of these kernels.
const DEVICES: [(u32, u32); 2] = [(8, 0), (9, 0)];

fn opened() -> Vec<(Arc<Machine>, Device)> {
    let open = |capability| {
        let machine = Arc::new(Machine::new(capability, 3));
        let cuda = Cuda::with_driver(machine.clone(), None).expect("the machine takes the artifact");
        (machine, Device::from_cuda(cuda))
    };
    DEVICES.into_iter().map(open).collect()
}

/// Codecs with buckets of every class that kernels tell apart: of 4 bits, and beside them of the class that has no
/// kernels of its own; and of one bit or two.
fn codecs() -> Vec<Quantizer> {
    let mut all = Vec::new();
    for bucket in [32, 64, 128, 256, 512, 2048] {
        all.push(Quantizer::Qsgd(Qsgd::bits(4).bucket(bucket)));
        all.push(Quantizer::Uniform(Uniform::bits(4).bucket(bucket)));
    }
    for bucket in [64, 256, 1024] {
        all.push(Quantizer::OneBit(OneBit::new().without_feedback().bucket(bucket)));
        all.push(Quantizer::Sign(Sign::new().without_feedback().bucket(bucket)));
        all.push(Quantizer::Ternary(Ternary::new().bucket(bucket)));
    }
    all.push(Quantizer::OneBit(OneBit::new().without_feedback().whole_tensor()));
    all.push(Quantizer::Qsgd(Qsgd::bits(4).whole_tensor()));
    all.push(Quantizer::Uniform(Uniform::bits(4).whole_tensor()));
    all
}

/// Values whose buckets are of every kind that a decoder tells apart: usual, zero, far too small, far too large,
/// poisoned.
fn mixed(n: usize, seed: u64) -> Vec<f32> {
    let mut x = normal(n, seed);
    for (at, value) in x.iter_mut().enumerate() {
        match (at / 64 + seed as usize) % 11 {
            1 => *value = 0.0,
            2 => *value = -0.0,
            3 => *value *= 1e-30,
            4 => *value *= 1e38,
            5 => *value = f32::from_bits(at as u32 % 5),
            6 if at % 64 == 9 => *value = f32::NAN,
            _ => {}
        }
    }
    x
}

fn payloads(codec: &Quantizer, n: usize, count: usize, of: fn(usize, u64) -> Vec<f32>) -> Vec<Payload> {
    let encode = |k| Device::cpu().encode(codec, &of(n, k), Seed::new(k)).expect("the CPU encodes");
    (0..count as u64).map(encode).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// What the CPU and the devices make of `does`, over an output that held something.
fn same(devices: &[(Arc<Machine>, Device)], label: &str, n: usize, does: impl Fn(&Device, &mut [f32])) {
    let run = |device: &Device| {
        let mut out = normal(n, 77);
        does(device, &mut out);
        bits(&out)
    };
    let expected = run(&Device::cpu());
    for (machine, device) in devices {
        let found = run(device);
        let differs = expected.iter().zip(&found).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{device}, {label}: the first element that differs");
        assert_eq!(machine.take_faults(), [], "{device}, {label}");
    }
}

#[test]
fn one_payload_is_written_and_added() {
    let devices = opened();
    for codec in codecs() {
        // A warp that is full and one that is not, a last unit with one element, buckets of all kinds.
        for (n, of) in [(1, normal as fn(usize, u64) -> Vec<f32>), (1281, mixed), (2048, mixed), (9217, normal)] {
            let payload = &payloads(&codec, n, 1, of)[0];
            let label = format!("{codec:?}, {n}");
            same(&devices, &label, n, |device, out| device.decode_into(payload, out).expect("decodes"));
            for weight in [-0.3, f32::MAX] {
                same(&devices, &label, n, |device, out| device.decode_add(payload, weight, out).expect("decodes"));
            }
        }
    }
}

#[test]
fn payloads_are_summed_whatever_their_number() {
    let devices = opened();
    for codec in codecs() {
        for (n, of, counts) in [
            (1, normal as fn(usize, u64) -> Vec<f32>, &[2, 8][..]),
            (700, normal, &[2, 3, 4, 5, 7, 8, 9, 12, 17]),
            (1281, mixed, &[3, 8, 13]),
            (9217, normal, &[8]),
        ] {
            let all = payloads(&codec, n, 17, of);
            for count in counts {
                for weight in [0.125, f32::MAX] {
                    let label = format!("{codec:?}, {n}, {count} payloads, weight {weight}");
                    same(&devices, &label, n, |device, out| {
                        device.decode_sum(&all[..*count], weight, out).expect("decodes");
                    });
                }
            }
        }
    }
}

#[test]
fn models_are_decoded_as_their_tensors_are() {
    let devices = opened();
    let layout = Layout::from_shapes([&[300][..], &[20, 30], &[1], &[9000], &[64]]).expect("a layout");
    let n = layout.elements() as usize;
    for codec in codecs() {
        let plan = Device::cpu().model_plan(&codec, &layout, Dtype::F32).expect("a plan");
        let encode = |k| Device::cpu().encode_model(&plan, &mixed(n, k), &mut [], Seed::new(k)).expect("encodes");
        let workers: Vec<Vec<Payload>> = (0..9).map(encode).collect();
        for (count, mode) in
            [(1, DecodeMode::Write), (1, DecodeMode::Add(0.5)), (4, DecodeMode::Sum(0.25)), (9, DecodeMode::Sum(0.25))]
        {
            let of: Vec<&[Payload]> = workers[..count].iter().map(Vec::as_slice).collect();
            same(&devices, &format!("{codec:?}, {mode:?} of {count}"), n, |device, out| {
                let plan = device.model_plan(&codec, &layout, Dtype::F32).expect("a plan");
                device.decode_model(&plan, mode, &of, out).expect("decodes");
            });
        }
    }
}
