//! Random multi-head attentions: forward, gradients along random directions, and cache splits.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor};
use layers::{Alignment, KvCache, RotaryConfig, RotaryLayout, RotaryScaling, Scale, Window};
use tests::reference::{
    Broadcast, MultiHead, Normalization, Positions, Problem, Projection, Sink, Sizes,
};
use tests::{Random, Tolerance, compare, floats, multi_head_input, multi_head_module, values};

use crate::draw;

/// A module with the inputs of one call.
struct Call {
    module: MultiHead,
    inputs: [Vec<f64>; 3],
}

impl Call {
    fn forward(&self) -> Vec<f64> {
        let [query, key, value] = &self.inputs;
        self.module.forward(query, key, value)
    }
}

fn sizes(random: &mut Random) -> Sizes {
    let kv_heads = random.pick(&[1, 2]);
    Sizes {
        batch: random.pick(&[1, 2]),
        heads: kv_heads * random.pick(&[1, 3]),
        kv_heads,
        query_len: random.pick(&[1, 2, 5, 7]),
        key_len: random.pick(&[1, 3, 5, 11]),
        d_k: random.pick(&[2, 4, 6, 10]),
        d_v: random.pick(&[1, 3, 8]),
    }
}

fn draw(random: &mut Random, sizes: Sizes) -> Call {
    let mut template = Problem::new(sizes, Vec::new(), Vec::new(), Vec::new());
    draw::options(&mut template, random);
    let [d_model, d_key, d_value] = [random.pick(&[5, 12]), random.pick(&[3, 12]), 7];
    let mut projection = |input: usize, output: usize| Projection {
        // Unit variance in, unit variance out.
        weight: random
            .normals(input * output)
            .iter()
            .map(|number| f64::from((number / (input as f64).sqrt()) as f32))
            .collect(),
        bias: random.maybe(0.7, |random| random.normals(output)),
        input,
        output,
    };
    let query = projection(d_model, sizes.heads * sizes.d_k);
    let key = projection(d_key, sizes.kv_heads * sizes.d_k);
    let value = projection(d_value, sizes.kv_heads * sizes.d_v);
    let output = projection(sizes.heads * sizes.d_v, d_model);
    let normalization = match random.below(4) {
        0 => Normalization::Rms {
            epsilon: 1e-5,
            query: random.normals(sizes.d_k),
            key: random.normals(sizes.d_k),
        },
        1 => Normalization::L2,
        _ => Normalization::None,
    };
    if normalization == Normalization::L2 {
        template.scale = random.pick(&[Scale::Fixed(3.0), Scale::Learned { initial: 2.0 }]);
    }
    let rotary = random.maybe(0.6, |random| self::rotary(sizes.d_k, random));
    let positions = random.maybe(0.3, |random| {
        let mut lists = |length: usize| {
            let count = random.pick(&[1, sizes.batch]);
            let place = |random: &mut Random| random.below(200) as i64 - 50;
            let list = |random: &mut Random| (0..length).map(|_| place(random)).collect();
            (0..count).map(|_| list(random)).collect()
        };
        Positions {
            query: lists(sizes.query_len),
            key: lists(sizes.key_len),
        }
    });
    let extra = random.maybe(0.25, |random| {
        let key = random.normals(sizes.kv_heads * sizes.d_k);
        (key, random.normals(sizes.kv_heads * sizes.d_v))
    });
    let inputs = [
        random.normals(sizes.batch * sizes.query_len * d_model),
        random.normals(sizes.batch * sizes.key_len * d_key),
        random.normals(sizes.batch * sizes.key_len * d_value),
    ];
    Call {
        module: MultiHead {
            template,
            query,
            key,
            value,
            output,
            normalization,
            rotary,
            positions,
            extra,
            zero: random.chance(0.2),
        },
        inputs,
    }
}

fn rotary(d_k: usize, random: &mut Random) -> RotaryConfig {
    let scaling = match random.below(4) {
        0 => RotaryScaling::Linear { factor: 4.0 },
        1 if d_k >= 4 => RotaryScaling::Ntk { factor: 8.0 },
        2 => RotaryScaling::Yarn {
            factor: 4.0,
            original_length: 64,
        },
        _ => RotaryScaling::None,
    };
    let partial = d_k > 4;
    RotaryConfig::new()
        .with_dimensions(random.maybe(if partial { 0.5 } else { 0.0 }, |_| d_k - 2))
        .with_base(random.pick(&[10000.0, 100.0]))
        .with_layout(random.pick(&[RotaryLayout::HalfSplit, RotaryLayout::Interleaved]))
        .with_scaling(scaling)
}

fn shape(numbers: &[f64], batch: usize, width: usize) -> [usize; 3] {
    [batch, numbers.len() / (batch * width), width]
}

/// The tensors of a call, leaves on an autodiff device.
fn tensors(call: &Call, device: &Device) -> [Tensor<3>; 3] {
    let batch = call.module.template.sizes.batch;
    let widths = [&call.module.query, &call.module.key, &call.module.value];
    [0, 1, 2].map(|index| {
        let numbers = &call.inputs[index];
        let shape = shape(numbers, batch, widths[index].input);
        let tensor = floats(numbers, shape, device);
        match device.is_autodiff() {
            true => tensor.require_grad(),
            false => tensor,
        }
    })
}

/// The tolerance grows with the number of roundings between input and output: two projections.
const OUTPUT: f64 = 1e-5;

pub fn forward_and_gradients(seed: u64, device: &Device) -> String {
    let mut random = Random::new(seed ^ 0xA11);
    let sizes = sizes(&mut random);
    let call = draw(&mut random, sizes);
    let expected = call.forward();
    let shape = [sizes.batch, sizes.query_len, call.module.output.output];

    let plain = multi_head_module(&call.module, device);
    let input = multi_head_input(&call.module, tensors(&call, device), device);
    let found = values(plain.forward(input));
    let tolerance = Tolerance::new(OUTPUT, OUTPUT);
    if let Err(difference) = compare(&found, &expected, &shape, tolerance) {
        return format!("output: {difference}\n  {}", summary(&call.module));
    }

    let device = &device.clone().autodiff();
    let module = multi_head_module(&call.module, device);
    let leaves = tensors(&call, device);
    let input = multi_head_input(&call.module, leaves.clone(), device);
    let upstream = random.normals(expected.len());
    let loss = (module.forward(input) * floats(&upstream, shape, device)).sum();
    let gradients = loss.backward();
    let wrong: Vec<String> = parts(&module, &leaves, &gradients)
        .into_iter()
        .filter_map(|(name, gradient)| {
            let direction = direction(gradient.len(), &mut random);
            let expected = slope(&call, &name, &direction, &upstream);
            let found: f64 = gradient.iter().zip(&direction).map(|(a, b)| a * b).sum();
            // A sum of as many errors as there are numbers, along a direction of length 1.
            let bound = 2e-5 * (gradient.len() as f64).sqrt();
            let tolerance = Tolerance::new(bound, 1e-4);
            let difference = compare(&[found], &[expected], &[1], tolerance).err()?;
            Some(format!("gradient of {name}: {difference}"))
        })
        .collect();
    match wrong.is_empty() {
        true => String::new(),
        false => format!("{}\n  {}", wrong.join("\n"), summary(&call.module)),
    }
}

/// A random direction of length 1.
fn direction(count: usize, random: &mut Random) -> Vec<f64> {
    let numbers = random.normals(count);
    let length = numbers.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-9);
    numbers.iter().map(|number| number / length).collect()
}

/// The slope of the loss of the reference along a direction of one of its parts.
fn slope(call: &Call, name: &str, direction: &[f64], upstream: &[f64]) -> f64 {
    const STEP: f64 = 1e-4;
    let loss = |step: f64| -> f64 {
        let mut moved = Call {
            module: call.module.clone(),
            inputs: call.inputs.clone(),
        };
        let part = part(&mut moved, name);
        for (number, direction) in part.iter_mut().zip(direction) {
            *number += step * direction;
        }
        let output = moved.forward();
        output.iter().zip(upstream).map(|(a, b)| a * b).sum()
    };
    (loss(STEP) - loss(-STEP)) / (2.0 * STEP)
}

/// The numbers of the reference that a name stands for.
fn part<'a>(call: &'a mut Call, name: &str) -> &'a mut [f64] {
    let module = &mut call.module;
    let projection = |name: &str| match name {
        "query" => 0,
        "key" => 1,
        "value" => 2,
        _ => 3,
    };
    let (first, rest) = name.split_once('.').unwrap_or((name, ""));
    match (first, rest) {
        ("input", index) => &mut call.inputs[projection(index)],
        ("query" | "key" | "value" | "output", kind) => {
            let projection = match projection(first) {
                0 => &mut module.query,
                1 => &mut module.key,
                2 => &mut module.value,
                _ => &mut module.output,
            };
            match (kind, &mut projection.bias) {
                ("weight", _) => &mut projection.weight,
                (_, Some(bias)) => bias,
                (_, None) => unreachable!("{name} does not exist"),
            }
        }
        ("qk_norm", which) => match (&mut module.normalization, which) {
            (Normalization::Rms { query, .. }, "query.gamma") => query,
            (Normalization::Rms { key, .. }, _) => key,
            _ => unreachable!("{name} does not exist"),
        },
        ("attention", "learned_scale") => std::slice::from_mut(&mut module.template.learned_factor),
        ("attention", _) => match &mut module.template.sink {
            Sink::Learned(logits) => logits,
            Sink::None | Sink::Quiet => unreachable!("{name} does not exist"),
        },
        ("bias_key", _) => &mut module.extra.as_mut().expect("a key").0,
        ("bias_value", _) => &mut module.extra.as_mut().expect("a value").1,
        _ => panic!("a parameter that the reference does not have: {name}"),
    }
}

/// Every gradient by the name of its leaf; zeros where none was given.
fn parts(
    module: &layers::MultiHeadAttention,
    leaves: &[Tensor<3>; 3],
    gradients: &Gradients,
) -> Vec<(String, Vec<f64>)> {
    let mut found: Vec<_> = ["query", "key", "value"]
        .iter()
        .zip(leaves)
        .map(|(name, leaf)| (format!("input.{name}"), gradient(leaf, gradients)))
        .collect();
    let mut collector = Collector {
        path: Vec::new(),
        gradients,
        found: Vec::new(),
    };
    module.visit(&mut collector);
    found.extend(collector.found);
    found
}

fn gradient<const D: usize>(leaf: &Tensor<D>, gradients: &Gradients) -> Vec<f64> {
    let count = leaf.shape().num_elements();
    leaf.grad(gradients)
        .map_or_else(|| vec![0.0; count], values)
}

struct Collector<'a> {
    path: Vec<String>,
    gradients: &'a Gradients,
    found: Vec<(String, Vec<f64>)>,
}

impl ModuleVisitor for Collector<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = gradient(&param.val(), self.gradients);
        self.found.push((self.path.join("."), gradient));
    }
}

/// Self-attention of any length through a cache, in any chunks, against one pass of the reference.
pub fn cache_splits(seed: u64, device: &Device) -> String {
    let mut random = Random::new(seed ^ 0xCACE);
    let length = random.pick(&[1, 3, 8, 13, 19]);
    let sizes = Sizes {
        query_len: length,
        key_len: length,
        ..sizes(&mut random)
    };
    let mut call = draw(&mut random, sizes);
    let options = &mut call.module.template;
    options.causal = true;
    // Lengths of samples are the business of masks when chunks come one by one.
    options.key_lengths = None;
    options.query_lengths = None;
    options.segments = None;
    options.alignment = match options.alignment {
        // A query that stands at a key to come cannot be decoded.
        Alignment::Offset(offset) => Alignment::Offset(offset.min(0)),
        Alignment::ValidBottomRight => Alignment::BottomRight,
        other => other,
    };
    call.module.positions = None;
    let behind = match options.alignment {
        Alignment::Offset(offset) => offset.unsigned_abs() as usize,
        _ => 0,
    };
    let before = options.window.and_then(|window| window.before);
    let before = before.map(|before| before + behind);
    let rolling = match before {
        Some(before) if random.chance(0.6) => Some(before + random.below(3)),
        _ => None,
    };
    if rolling.is_some() {
        // They count the keys that the cache keeps, which a rolling one has fewer of.
        options.bias = None;
        options.blocked = None;
    }
    let expected = call.forward();

    let module = multi_head_module(&call.module, device);
    let inputs = tensors(&call, device);
    let mut cache = match rolling {
        Some(window) => KvCache::rolling(window),
        None if random.chance(0.5) => KvCache::preallocated(length + 4),
        None => KvCache::growing(),
    };
    let mut chunks = Vec::new();
    let mut start = 0;
    while start < length {
        let count = (1 + random.below(4)).min(length - start);
        if rolling.is_none() && random.chance(0.2) {
            // A draft that is refused.
            let draft = inputs.each_ref().map(|input| input.clone().narrow(1, 0, 1));
            module.forward(
                multi_head_input(&without_score_shapes(&call.module), draft, device)
                    .cache(&mut cache),
            );
            cache.rewind(1);
        }
        let part = inputs
            .each_ref()
            .map(|input| input.clone().narrow(1, start, count));
        let options = chunk_options(&call.module, start, count);
        let input = multi_head_input(&options, part, device).cache(&mut cache);
        chunks.push(module.forward(input));
        start += count;
    }
    let found = values(Tensor::cat(chunks, 1));
    let shape = [sizes.batch, length, call.module.output.output];
    let tolerance = Tolerance::new(OUTPUT, OUTPUT);
    match compare(&found, &expected, &shape, tolerance) {
        Ok(()) => String::new(),
        Err(difference) => format!(
            "rolling {rolling:?}: {difference}\n  {}",
            summary(&call.module)
        ),
    }
}

fn without_score_shapes(module: &MultiHead) -> MultiHead {
    let mut module = module.clone();
    module.template.bias = None;
    module.template.blocked = None;
    module
}

/// The mask and the bias of a chunk of queries over all keys so far.
fn chunk_options(module: &MultiHead, start: usize, count: usize) -> MultiHead {
    let mut module = module.clone();
    let options = &mut module.template;
    options.bias = options.bias.as_ref().map(|bias| cut(bias, start, count));
    options.blocked = options.blocked.as_ref().map(|mask| cut(mask, start, count));
    module
}

fn cut<T: Copy>(whole: &Broadcast<T>, start: usize, count: usize) -> Broadcast<T> {
    let [batch, heads, queries, keys] = whole.shape;
    let rows = if queries == 1 {
        0..1
    } else {
        start..start + count
    };
    // A single key is all of them, unless it is one that broadcasts.
    let columns = if keys == 1 { 1 } else { start + count };
    let mut values = Vec::new();
    for head in 0..batch * heads {
        for row in rows.clone() {
            let at = (head * queries + row) * keys;
            values.extend_from_slice(&whole.values[at..at + columns]);
        }
    }
    Broadcast {
        shape: [batch, heads, rows.len(), columns],
        values,
    }
}

/// The options of a module without its numbers.
fn summary(module: &MultiHead) -> String {
    let options = &module.template;
    let window: Option<Window> = options.window;
    format!(
        "{:?} {} causal {} {} window {window:?} softcap {:?} sink {:?} alibi {} bias {:?} mask \
         {:?} keys {:?} queries {:?} segments {:?} norm {:?} rotary {:?} positions {:?} \
         bias_kv {} zero {}",
        options.sizes,
        options.scale,
        options.causal,
        options.alignment,
        options.softcap,
        options.sink,
        options.alibi,
        options.bias.as_ref().map(|bias| bias.shape),
        options.blocked.as_ref().map(|mask| mask.shape),
        options.key_lengths,
        options.query_lengths,
        options.segments,
        module.normalization,
        module.rotary,
        module.positions,
        module.extra.is_some(),
        module.zero,
    )
}
