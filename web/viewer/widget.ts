// In a notebook: the page in a frame of its own. What it asks goes to the kernel through the widget's channel, so that
// nothing listens at a port, and the notebook's own page is out of reach of what a run's names hold.

import type { Carried } from "./carrier";

interface Model {
  get(name: "page" | "title" | "height"): unknown;
  send(content: { id: string; url: string }): void;
  on(event: "msg:custom", heard: (said: Omit<Carried, "body">, buffers: DataView[]) => void): void;
  off(event: "msg:custom", heard: unknown): void;
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.title = `Timeline of ${String(model.get("title"))}`;
  Object.assign(frame.style, { display: "block", boxSizing: "border-box", width: "100%", height: `${Number(model.get("height"))}px` });
  frame.style.border = "1px solid rgba(128, 128, 128, 0.35)";
  const asked = ({ source, data }: MessageEvent<{ id: string; url: string }>) => {
    if (source === frame.contentWindow) model.send({ id: String(data.id), url: String(data.url) });
  };
  const answered = (said: Omit<Carried, "body">, buffers: DataView[]) => {
    const { buffer, byteOffset, byteLength } = buffers[0] ?? new DataView(new ArrayBuffer(0));
    const body = (buffer as ArrayBuffer).slice(byteOffset, byteOffset + byteLength);
    frame.contentWindow?.postMessage({ ...said, body }, "*", [body]);
  };
  addEventListener("message", asked);
  model.on("msg:custom", answered);
  frame.srcdoc = String(model.get("page"));
  el.append(frame);
  return () => {
    removeEventListener("message", asked);
    model.off("msg:custom", answered);
  };
}

export default { render };
