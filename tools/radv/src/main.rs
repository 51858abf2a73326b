//! `cargo xtask radv`: the machine code that Mesa's compiler for AMD's GPUs makes of the shaders: vector instructions,
//! cycles and registers, without such a GPU.
//!
//! RADV has a null device (`RADV_FORCE_FAMILY`), which compiles and runs nothing. wgpu cannot open it, since it waits
//! for the device at once; so a pipeline is made here, from the SPIR-V that naga writes with the options that wgpu
//! gives it.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use ash::vk;
use clap::Parser;
use gradwire_shaders::{SHADERS, Shader};
use gradwire_tools::ending::ending;
use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};

use self::listing::Counts;

mod listing;
mod shaders;
mod table;

/// The environment variable that names the null device.
const FAMILY: &str = "RADV_FORCE_FAMILY";

/// Of what.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Entry points whose names have this in them.
    #[arg(long, default_value = "")]
    kernel: String,
    /// TEXT=WORD: writes the second where the shader has the first as whole words, so that what a setting never runs is
    /// left out. `params.bits=4u` fixes a parameter; `any(rare)=false` leaves out a branch.
    #[arg(long)]
    set: Vec<String>,
    /// Read the modules from this folder, where an entry point's file is ENTRY.wgsl, as `cargo xtask shaders` leaves
    /// them.
    #[arg(long)]
    from: Option<PathBuf>,
    /// Print the machine code too.
    #[arg(long)]
    listing: bool,
    /// In the place of all that, print the cycles per element of what is done most, as docs/sass.md has them.
    #[arg(long, conflicts_with_all = ["kernel", "set", "from", "listing"])]
    table: bool,
    /// The GPU, by RADV's name.
    #[arg(long, default_value = "navi21")]
    family: String,
    /// The driver's manifest; without it, the one that Mesa's package installs.
    #[arg(long)]
    driver: Option<PathBuf>,
}

/// Prints a row per entry point.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    if std::env::var(FAMILY).ok().as_deref() != Some(&args.family) {
        return again(args);
    }
    let compiler = Compiler::open()?;
    if args.table {
        return table::print(&compiler);
    }
    println!("| entry point | instructions | of vectors | their cycles | of those in each loop | vector registers |");
    println!("|---|---|---|---|---|---|");
    for shader in SHADERS.iter().filter(|shader| shader.name.contains(&args.kernel)) {
        let mut source = match &args.from {
            None => shader.source.to_owned(),
            Some(folder) => {
                let path = folder.join(shader.name).with_extension("wgsl");
                std::fs::read_to_string(&path).map_err(|e| format!("{} could not be read: {e}", path.display()))?
            }
        };
        for rule in &args.set {
            let (from, to) =
                rule.rsplit_once('=').ok_or_else(|| format!("--set {rule} has no `=`; write TEXT=WORD"))?;
            source = with(&source, from, to);
        }
        let made = compiler.compile(shader, &source)?;
        let counts = Counts::of(&made.listing);
        let loops: Vec<_> = counts.loops.iter().map(u32::to_string).collect();
        println!(
            "| {} | {} | {} | {} | {} | {} |",
            shader.name,
            counts.all,
            counts.vector,
            counts.cycles,
            loops.join(" + "),
            made.registers
        );
        if args.listing {
            println!("{}", made.listing);
        }
    }
    Ok(())
}

/// Runs this command in a process whose environment has the null device, since Vulkan's loader reads it.
fn again(args: &Args) -> Result<(), String> {
    let installed = || {
        let folder = std::fs::read_dir("/usr/share/vulkan/icd.d").ok()?;
        folder
            .filter_map(|file| Some(file.ok()?.path()))
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("radeon_icd")))
    };
    let driver = args.driver.clone().or_else(installed).ok_or(
        "/usr/share/vulkan/icd.d has no radeon_icd*.json; install Mesa's Vulkan drivers or name the file with --driver",
    )?;
    let program = std::env::current_exe().map_err(|e| format!("this program's own path is not known: {e}"))?;
    let status = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(FAMILY, &args.family)
        .env("VK_DRIVER_FILES", driver)
        .env("MESA_SHADER_CACHE_DISABLE", "true")
        .status()
        .map_err(|e| format!("this program could not be started again: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("the compilation ended with {status}")) }
}

/// `source` with `to` wherever it has `from`, but where that is a part of a longer word.
fn with(source: &str, from: &str, to: &str) -> String {
    let word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut out = String::new();
    let mut rest = source;
    while let Some(at) = (!from.is_empty()).then(|| rest.find(from)).flatten() {
        let end = at + from.len();
        let before = rest[..at].chars().next_back().or(out.chars().next_back());
        let part = (word(before) && word(from.chars().next()))
            || (word(from.chars().next_back()) && word(rest[end..].chars().next()));
        out += &rest[..at];
        out += if part { from } else { to };
        rest = &rest[end..];
    }
    out + rest
}

/// What the compiler made.
struct Made {
    listing: String,
    registers: u64,
}

/// The null device. It lasts as long as the process, which ends right after.
struct Compiler {
    _entry: ash::Entry,
    _instance: ash::Instance,
    device: ash::Device,
    executables: ash::khr::pipeline_executable_properties::Device,
}

fn refused(what: &str) -> impl Fn(vk::Result) -> String {
    move |e| format!("the driver refused {what}: {e}")
}

impl Compiler {
    fn open() -> Result<Self, String> {
        // SAFETY: Vulkan's loader is a library that expects to be loaded so.
        let entry = unsafe { ash::Entry::load() }.map_err(|e| format!("Vulkan's loader was not found: {e}"))?;
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let about = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the structures live through the calls, and the handles are this instance's.
        let (instance, physical) = unsafe {
            let instance = entry.create_instance(&about, None).map_err(refused("an instance"))?;
            let devices = instance.enumerate_physical_devices().map_err(refused("its devices"))?;
            (instance, *devices.first().ok_or("the driver offers no null device; it is too old, or not RADV")?)
        };
        let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
        let names = [ash::khr::pipeline_executable_properties::NAME.as_ptr()];
        let mut wanted =
            vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default().pipeline_executable_info(true);
        // wgpu asks for these too, and has the driver clear workgroup memory and bound storage buffers.
        let mut model = vk::PhysicalDeviceVulkanMemoryModelFeatures::default().vulkan_memory_model(true);
        let core = vk::PhysicalDeviceFeatures::default().robust_buffer_access(true);
        let about = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&names)
            .enabled_features(&core)
            .push_next(&mut wanted)
            .push_next(&mut model);
        // SAFETY: as above.
        let device = unsafe { instance.create_device(physical, &about, None) }.map_err(refused("a device"))?;
        let executables = ash::khr::pipeline_executable_properties::Device::new(&instance, &device);
        Ok(Self { _entry: entry, _instance: instance, device, executables })
    }

    fn compile(&self, shader: &Shader, source: &str) -> Result<Made, String> {
        let words = spirv(shader.name, source)?;
        let binding = |at, kind| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(at)
                .descriptor_type(kind)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let mut bindings = vec![binding(0, vk::DescriptorType::UNIFORM_BUFFER)];
        bindings.extend((1..=shader.bindings.len()).map(|at| binding(at as u32, vk::DescriptorType::STORAGE_BUFFER)));
        let name = std::ffi::CString::new(shader.name).map_err(|e| e.to_string())?;
        // SAFETY: every structure lives until the call that reads it is done; the handles are this device's, which
        // lives as long as the process; the SPIR-V is naga's, which validated the module.
        unsafe {
            let device = &self.device;
            let about = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
            let sets = [device.create_descriptor_set_layout(&about, None).map_err(refused("a layout"))?];
            let about = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
            let layout = device.create_pipeline_layout(&about, None).map_err(refused("a layout"))?;
            let about = vk::ShaderModuleCreateInfo::default().code(&words);
            let module = device.create_shader_module(&about, None).map_err(refused(shader.name))?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(&name);
            let about = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout).flags(
                vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR
                    | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR,
            );
            let made = device.create_compute_pipelines(vk::PipelineCache::null(), &[about], None);
            let pipeline = made.map_err(|(_, e)| refused(shader.name)(e))?[0];
            let of = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
            let statistics = self.executables.get_pipeline_executable_statistics(&of).map_err(refused("counts"))?;
            let registers = statistics
                .iter()
                .find(|found| found.name_as_c_str().is_ok_and(|name| name == c"VGPRs"))
                .map_or(0, |found| found.value.u64);
            Ok(Made { listing: self.listing(&of)?, registers })
        }
    }

    /// # Safety
    /// The pipeline is this device's, and was made to capture its representations.
    unsafe fn listing(&self, of: &vk::PipelineExecutableInfoKHR<'_>) -> Result<String, String> {
        let ask = self.executables.fp().get_pipeline_executable_internal_representations_khr;
        let mut count = 0;
        // SAFETY: the caller's promise; the first call says how many there are, the second how long each is.
        let mut found = unsafe {
            ask(self.device.handle(), of, &mut count, std::ptr::null_mut()).result().map_err(refused("code"))?;
            let mut found = vec![vk::PipelineExecutableInternalRepresentationKHR::default(); count as usize];
            ask(self.device.handle(), of, &mut count, found.as_mut_ptr()).result().map_err(refused("code"))?;
            found
        };
        let mut texts: Vec<Vec<u8>> = found.iter().map(|one| vec![0; one.data_size]).collect();
        for (one, text) in found.iter_mut().zip(&mut texts) {
            one.p_data = text.as_mut_ptr().cast();
        }
        // SAFETY: as above, and each pointer points to as many bytes as its structure says.
        unsafe { ask(self.device.handle(), of, &mut count, found.as_mut_ptr()).result().map_err(refused("code"))? };
        let named = |one: &vk::PipelineExecutableInternalRepresentationKHR<'_>| {
            one.name_as_c_str().is_ok_and(|name| name == c"Assembly")
        };
        let at = found.iter().position(named).ok_or("the driver gives no machine code")?;
        Ok(String::from_utf8_lossy(&texts[at]).trim_end_matches('\0').to_owned())
    }
}

/// The SPIR-V of a module, as wgpu 30 has it made for a driver such as RADV.
fn spirv(name: &str, source: &str) -> Result<Vec<u32>, String> {
    let module = naga::front::wgsl::parse_str(source).map_err(|e| format!("{name}: {}", e.emit_to_string(source)))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::empty())
        .validate(&module)
        .map_err(|e| format!("{name}: {}", e.emit_to_string(source)))?;
    let options = spv::Options {
        lang_version: (1, 3),
        bounds_check_policies: BoundsCheckPolicies {
            index: BoundsCheckPolicy::Restrict,
            buffer: BoundsCheckPolicy::Unchecked,
            image_load: BoundsCheckPolicy::Unchecked,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::Native,
        ..spv::Options::default()
    };
    let entry = spv::PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: name.to_owned() };
    spv::write_vec(&module, &info, &options, Some(&entry)).map_err(|e| format!("{name}: {e}"))
}

#[derive(Parser)]
#[command(name = "gradwire-radv", bin_name = "cargo xtask")]
enum Cli {
    /// Compile the shaders for an AMD GPU that need not be there, and count their instructions, cycles and registers.
    Radv(Args),
    /// Write every WGSL module that the WGPU backend can create into a folder.
    Shaders(shaders::Args),
}

fn main() -> ExitCode {
    ending(match Cli::parse() {
        Cli::Radv(args) => run(&args),
        Cli::Shaders(args) => shaders::run(&args),
    })
}
