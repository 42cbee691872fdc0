// A device of a federation in Kotlin: DeviceKt CHECKPOINT IMAGES LABELS ADDRESS.
import edgegrad.mnist.Device
import java.io.File
import java.io.IOException
import java.net.HttpURLConnection
import java.net.URL
import java.nio.ByteBuffer
import java.nio.ByteOrder

/** Call the server: with a body it is a POST. Returns the status, and what the server sent. */
fun call(address: URL, body: ByteArray? = null): Pair<Int, ByteArray> {
  val connection = address.openConnection() as HttpURLConnection
  try {
    if (body != null) {
      connection.requestMethod = "POST"
      connection.doOutput = true
      connection.setFixedLengthStreamingMode(body.size)
      connection.outputStream.use { it.write(body) }
    }
    val status = connection.responseCode
    val content = if (status == 200) connection.inputStream.use { it.readBytes() } else ByteArray(0)
    return Pair(status, content)
  } finally {
    connection.disconnect()
  }
}

/** Answer requests until the server says that there are no more rounds. */
fun serve(device: Device, address: URL) {
  while (true) {
    val (status, request) = try {
      call(address)
    } catch (error: IOException) { // no network: the request is still there later
      Pair(0, ByteArray(0))
    }
    if (status == 410) return
    if (status != 200) {
      Thread.sleep(if (status == 204) 0 else 1000)
      continue
    }
    val answer = device.answer(request)
    println("answered with ${answer.size} bytes: status ${call(address, answer).first}")
  }
}

fun main(arguments: Array<String>) {
  val (checkpoint, images, labels) = arguments.map { File(it) }
  val pixels = ByteBuffer.wrap(images.readBytes()).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
  val classes = ByteBuffer.wrap(labels.readBytes()).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer()
  val samples = FloatArray(pixels.remaining()).also { pixels.get(it) }
  val targets = LongArray(classes.remaining()).also { classes.get(it) }
  serve(Device(checkpoint.readBytes(), samples, targets), URL(arguments[3]))
}
