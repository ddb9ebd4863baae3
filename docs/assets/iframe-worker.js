// Browsers start no Worker for a page that was opened from a disk (file:). The search then runs its worker's
// script in a hidden frame, which looks to both sides like a Worker. The theme knows this file by its name.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = []; // what is posted before the script has been loaded
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.onload = () => this.load(frame.contentWindow, address);
      document.body.append(frame);
    }

    load(inside, address) {
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = address;
      script.onload = () => {
        this.inside = inside;
        for (const data of this.waiting) this.postMessage(data);
      };
      inside.document.body.append(script);
    }

    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
  };
}
