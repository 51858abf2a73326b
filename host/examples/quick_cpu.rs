//! scratch
use gradwire::*;
use gradwire::session::*;
fn main() {
    let n = 1usize << std::env::var("LOG").map_or(24, |v| v.parse::<u32>().unwrap());
    let g: Vec<f32> = (0..n as u32).map(|i| { let x = i.wrapping_mul(2654435761) ; (x as f32 / 4294967296.0 - 0.5) * 0.01 }).collect();
    for simd in gradwire::backend::cpu::Simd::ALL.into_iter().filter(|s| std::env::var("SIMD").map_or(true, |v| v == s.name())) {
    let cpu = gradwire::backend::cpu::Cpu::with_simd(simd).unwrap();
    println!("{}", simd.name());
    for (name, codec) in [("4/512 max", Qsgd::bits(4)), ("4/512 l2", Qsgd::bits(4).l2()), ("8/512", Qsgd::bits(8)), ("2/128", Qsgd::bits(2).bucket(128)), ("16/8192", Qsgd::BITS_16), ("4 whole", Qsgd::bits(4).whole_tensor())].into_iter().filter(|c| std::env::var("CODEC").map_or(true, |v| c.0.contains(&v))) {
        let plan = if let Ok(u) = std::env::var("UNI") { let c = Uniform::bits(4); let c = if u == "n" { c.nearest() } else { c }; c.plan(n, Dtype::F32).unwrap() } else { codec.plan(n, Dtype::F32).unwrap() };
        let dplan = DecodePlan::new(*plan.header(), 1);
        let mut s = cpu.session(Sizes::encode(&plan).max(Sizes::decode(&dplan))).unwrap();
        s.write(Role::Input, 0, bytemuck::cast_slice(&g)).unwrap();
        let e = plan.passes(Seed::new(1), &gradwire::plan::Limits::NONE).unwrap();
        let d = dplan.passes(DecodeMode::Add(0.5), &gradwire::plan::Limits::NONE).unwrap();
        s.time(&e, 1).unwrap(); s.time(&d, 1).unwrap(); s.time_copy(Role::Input, Role::Output, 1).unwrap();
        if std::env::var("ONLY").is_ok() { for _ in 0..4000 { s.time(&e, 1).unwrap(); } continue; }
        let best = |f: &mut dyn FnMut() -> f64| (0..60).map(|_| f()).fold(1e9, f64::min);
        let te = best(&mut || s.time(&e, 1).unwrap());
        let td = best(&mut || s.time(&d, 1).unwrap());
        let tc = best(&mut || s.time_copy(Role::Input, Role::Output, 1).unwrap().0);
        let copy = 8.0 * n as f64 / tc / 1e9;
        let b = plan.header().bits as f64;
        println!("{name:10} copy {copy:5.1} enc {:6.2} GB/s grad, share {:.2}; dec_add {:6.2} share {:.2}", 4e-9 * n as f64 / te, n as f64 * (4.0 + b / 8.0) / te / 1e9 / copy, 4e-9 * n as f64 / td, n as f64 * (8.0 + b / 8.0) / td / 1e9 / copy);
    }}
}
