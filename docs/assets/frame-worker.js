// A worker for pages that are opened from a disk, for which browsers refuse the class Worker.
//
// The script of the worker runs in a hidden frame of the page instead of a thread. The class supports what the search of
// the site needs: messages in both directions and importScripts. The theme looks for the name IFrameWorker.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    const loaded = new Promise((resolve) => this.frame.addEventListener("load", resolve, { once: true }));
    document.body.append(this.frame);
    this.ready = loaded.then(() => this.start(url));
  }

  // Runs the script with the functions that the global scope of a worker has.
  start(url) {
    const scope = this.frame.contentWindow;
    scope.postMessage = (data) => this.receive(data);
    scope.importScripts = async (...urls) => {
      for (const each of urls) await this.load(each);
    };
    return this.load(url);
  }

  load(url) {
    const page = this.frame.contentDocument;
    const script = page.createElement("script");
    return new Promise((resolve, reject) => {
      script.addEventListener("load", resolve);
      script.addEventListener("error", () => reject(new Error(`${url} cannot be loaded`)));
      script.src = url;
      page.body.append(script);
    });
  }

  receive(data) {
    const event = new MessageEvent("message", { data });
    this.dispatchEvent(event);
    if (this.onmessage) this.onmessage(event);
  }

  postMessage(data) {
    this.ready.then(() => {
      const scope = this.frame.contentWindow;
      scope.dispatchEvent(new scope.MessageEvent("message", { data: structuredClone(data) }));
    });
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
