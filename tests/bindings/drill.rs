//! What every binding is put through, in Rust: drill CHECKPOINT STEPS OUT SESSIONS.

use mnist::{Error, Model, Phase};

struct Steps {
    content: Vec<u8>,
    samples: usize,
    labels: usize,
}

impl Steps {
    fn read(&self, k: usize) -> (f32, Vec<f32>, Vec<i64>) {
        let size = 4 + 4 * self.samples + 8 * self.labels;
        let step = &self.content[k * size..(k + 1) * size];
        let (floats, longs) = step.split_at(4 + 4 * self.samples);
        let floats: Vec<f32> =
            floats.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let longs = longs.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
        (floats[0], floats[1..].to_vec(), longs)
    }

    fn train(&self, model: &mut Model, k: usize) -> Result<i32, Error> {
        let (rate, x, y) = self.read(k);
        model.set_learning_rate(rate)?;
        model.train_step(&[x[..].into(), y[..].into()])?;
        let loss = model.floats(Phase::Train, 0)?[0];
        if !model.is_joined() && k != 3 {
            model.optimizer_step()?; // the fifth step adds to the gradients of the fourth
            model.lazy_reset_grad();
        }
        Ok(loss.to_bits() as i32)
    }
}

fn refuse<T>(result: Result<T, Error>) {
    match result {
        Ok(_) => println!("not refused"),
        Err(error) => {
            let words = format!("{:?}", error.code);
            let mut name = String::new();
            for letter in words.chars() {
                if letter.is_uppercase() && !name.is_empty() {
                    name.push('_');
                }
                name.extend(letter.to_uppercase());
            }
            println!("refused {name}: {error}");
        }
    }
}

fn resident() -> i64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<i64>().unwrap() * 4096
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let mut model = Model::create(&arguments[1])?;
    let count = |index| {
        model.input_info(Phase::Train, index).unwrap().dims.iter().product::<i64>() as usize
    };
    let (samples, labels) = (count(0), count(1));
    let steps = Steps { content: std::fs::read(&arguments[2])?, samples, labels };
    for k in 0..9 {
        println!("loss {}", steps.train(&mut model, k)?);
    }
    let (_, x, y) = steps.read(9);
    model.eval_step(&[x[..].into(), y[..].into()])?;
    println!("eval {}", model.floats(Phase::Eval, 0)?[0].to_bits() as i32);
    model.infer(&[x[..].into()])?;
    println!("predicted {}", model.floats(Phase::Infer, 0)?.len());
    model.set_property_string("note", "gr\u{fc}\u{df}")?;
    model.set_property_int("count", 9007199254740993)?;
    let (first, second) = (model.get_property(0)?, model.get_property(1)?);
    println!("property {} {}", second.text, first.integer);

    let before = model.checkpoint(true)?;
    refuse(model.train_step(&[x[1..].into(), y[..].into()]));
    refuse(model.train_step(&[x[..].into(), vec![10i64; y.len()][..].into()]));
    refuse(model.set_learning_rate(f32::NAN));
    refuse(model.set_parameters(&[0.0], true));
    refuse(Model::create_from(&before[..before.len() / 2]));
    refuse(Model::create("missing"));
    println!("unchanged {}", before == model.checkpoint(true)?);

    let mut resumed = Model::create_from(&before)?;
    refuse(resumed.optimizer_step());
    println!("round trip {}", before == resumed.checkpoint(true)?);
    model.save(&arguments[3], true)?;
    let mut opened = Model::create(&arguments[3])?;
    let loss = steps.train(&mut model, 9)?;
    println!("loss {loss}");
    let alike = [steps.train(&mut resumed, 9)?, steps.train(&mut opened, 9)?] == [loss, loss];
    println!("alike {alike}");
    model.save(&arguments[3], true)?;
    let values = model.parameters(true)?;
    resumed.set_parameters(&values, true)?;
    println!("parameters {} {}", values.len(), values == resumed.parameters(true)?);
    refuse(model.parameters_f64(true));
    std::fs::write(format!("{}.onnx", arguments[3]), model.export_model_bytes()?)?;
    model.set_step(10)?;
    model.set_linear_rate(0.5, 20, 40)?;
    println!("rate {}", model.get_learning_rate());

    let sessions: usize = arguments[4].parse()?;
    let mut first = 0;
    for k in 0..sessions {
        drop(Model::create_from(&before)?);
        if k == sessions / 2 {
            first = resident();
        }
    }
    println!("grown {}", (resident() - first).max(0) >> 20);
    Ok(())
}
