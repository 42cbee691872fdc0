//! A device of a federation in Rust: federated CHECKPOINT X LABELS FOLDER carries out the requests
//! in a folder, in the order of their names.

use mnist::{Error, Model, Phase};

struct Device {
    checkpoint: Vec<u8>,
    x: Vec<f32>,
    labels: Vec<i64>,
}

impl Device {
    /// Make the steps of a phase over all samples; return how many the last epoch had, and their
    /// mean loss.
    fn work(&self, m: &mut Model, phase: Phase, epochs: i32) -> Result<(i64, f32), Error> {
        let batch = m.get_batch() as usize;
        let width = self.x.len() / self.labels.len();
        let (mut count, mut sum) = (0, 0.0);
        for _ in 0..epochs {
            (count, sum) = (0, 0.0);
            for (x, labels) in
                self.x.chunks_exact(batch * width).zip(self.labels.chunks_exact(batch))
            {
                let inputs = [x.into(), labels.into()];
                match phase {
                    Phase::Train => m.train_step(&inputs)?,
                    _ => m.eval_step(&inputs)?,
                }
                if matches!(phase, Phase::Train) && !m.is_joined() {
                    m.optimizer_step()?;
                }
                m.lazy_reset_grad();
                sum += m.floats(phase, 0)?[0] * batch as f32;
                count += batch as i64;
            }
        }
        Ok((count, sum / count as f32))
    }

    fn carry_out(&mut self, m: &mut Model, request: &[u8]) -> Result<(i64, f32), Error> {
        let asked = m.take_request(request)?;
        let phase = asked.phase;
        let done = self.work(m, phase, asked.epochs)?;
        if asked.keeps_state != 0 {
            self.checkpoint = m.checkpoint(true)?;
        }
        Ok(done)
    }

    /// Carry out a request; what is not a request has no answer, but an error.
    fn answer(&mut self, request: &[u8]) -> Result<Vec<u8>, Error> {
        let mut m = Model::create_from(&self.checkpoint)?;
        let (count, loss, reason) = match self.carry_out(&mut m, request) {
            Ok((count, loss)) => (count, loss, String::new()),
            Err(error) => (0, 0.0, error.message),
        };
        let mut answer = vec![0; m.answer_size(request, count, loss, &reason)?];
        m.write_answer(request, count, loss, &reason, &mut answer)?;
        Ok(answer)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let x = std::fs::read(&arguments[2])?;
    let labels = std::fs::read(&arguments[3])?;
    let mut device = Device {
        checkpoint: std::fs::read(&arguments[1])?,
        x: x.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        labels: labels.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect(),
    };
    let mut paths: Vec<_> =
        std::fs::read_dir(&arguments[4])?.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match device.answer(&std::fs::read(&path)?) {
            Ok(answer) => {
                println!("{name}: taken");
                std::fs::write(format!("{}.answer", path.display()), answer)?;
            }
            Err(_) => println!("{name}: ModelError"),
        }
    }
    Ok(())
}
