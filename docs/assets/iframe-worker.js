// Browsers start no worker on a page opened from the disk: there the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise((resolve) => {
        const script = inner.document.createElement("script");
        script.onload = () => resolve(inner);
        script.src = url;
        inner.document.body.appendChild(script);
      });
    }

    async postMessage(data) {
      const inner = await this.loaded;
      inner.dispatchEvent(new inner.MessageEvent("message", { data }));
    }
  };
}
