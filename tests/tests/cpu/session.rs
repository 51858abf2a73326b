//! What sessions promise of their buffers, and what a lost device leaves: on every device of this machine.

#[cfg(feature = "wgpu")]
use gradwire::Device;
use gradwire::session::{Role, Sizes};

#[test]
fn a_write_leaves_the_bytes_beside_it_as_they_were() {
    for device in gradwire_tests::require::devices() {
        let mut session = device.session(Sizes([16; 9])).expect("sixteen bytes each");
        for role in [Role::Input, Role::Codes, Role::Workspace] {
            session.write(role, 0, &[0xaa; 16]).expect("they fit");
            session.write(role, 4, &[0x55; 5]).expect("they fit");
            session.write(role, 12, &[0x77; 3]).expect("they fit");
            let mut found = [0; 16];
            session.read(role, 0, &mut found).expect("they are there");
            let expected = [&[0xaa; 4][..], &[0x55; 5], &[0xaa; 3], &[0x77; 3], &[0xaa]].concat();
            assert_eq!(found[..], expected, "{device}, {role:?}");
        }
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn a_device_that_was_lost_says_so_and_changes_nothing() {
    use gradwire::{Codec, DecodeMode, Dtype, Error, Seed, Uniform, backend::wgpu::Wgpu};
    use pollster::block_on;

    let Some(caller) = gradwire_tests::caller::Caller::open() else { return };
    let (own, queue) = (&caller.device, &caller.queue);
    let wgpu = Wgpu::on(own, queue).expect("it opened before");
    let device = Device::from_wgpu(wgpu.clone());
    let plan = Uniform::bits(8).plan(600, Dtype::F32).and_then(|plan| plan.with_feedback()).expect("a plan");
    let (gradient, mut residual) = (vec![0.5f32; 600], vec![0.25f32; 600]);
    let payload = device.encode_plan(&plan, (&gradient).into(), &mut residual.clone(), Seed::new(1)).expect("it works");

    own.destroy();
    for again in [false, true] {
        let text = match device.encode_plan(&plan, (&gradient).into(), &mut residual, Seed::new(1)) {
            Err(Error::Backend { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        // The first call finds out, and from then on it is known.
        assert!(!again || (text.contains("was lost") && text.contains("open a new device")), "{text}");
        assert!(residual.iter().all(|v| *v == 0.25));
    }
    let lost = device.decode_add(&payload, 1.0, &mut residual);
    assert!(matches!(lost, Err(Error::Backend { .. })) && residual.iter().all(|v| *v == 0.25));
    let lost = block_on(wgpu.decode_async(&payload, DecodeMode::Write, &mut residual));
    assert!(matches!(lost, Err(Error::Backend { .. })) && residual.iter().all(|v| *v == 0.25));
}
