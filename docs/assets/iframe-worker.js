// Search runs in a Worker, and a browser starts none for a page that is opened as a file.
// There, this runs the worker's script in a hidden frame, and passes messages both ways.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      this.ready = new Promise(done => frame.addEventListener("load", () => {
        const inside = frame.contentWindow
        inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
        const script = inside.document.createElement("script")
        script.src = url
        script.addEventListener("load", () => done(inside))
        inside.document.body.append(script)
      }, { once: true }))
      document.documentElement.append(frame)
    }
    postMessage(data) {
      this.ready.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
