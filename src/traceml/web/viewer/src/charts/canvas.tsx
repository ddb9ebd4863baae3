/** A chart in the page: drawn when it is in sight, as wide as its place, whole on paper. */

import { useLayoutEffect, useRef } from "preact/hooks";
import { CONTROLS } from "./axes";
import { type Chart, newChart, type Option } from "./engine";
import type { Range } from "./zoom";

const NEAR = "60px 0px"; // drawn a little before it scrolls into sight

interface Properties {
  option: Option;
  height: number;
  /** The part of the horizontal axis that is in sight; `null`: all of it. */
  range: Range | null;
  /** Told once, when there is a chart to listen to. */
  onReady?: (chart: Chart) => void;
}

/** Holds one chart and brings the newest option to it at a time that disturbs nobody. */
class Easel {
  private chart: Chart | null = null;
  private pending: Option | null = null;
  private range: Range | null = null;
  private hasMoved = false;
  private isInSight = false;
  private isHeld = false;
  private readonly sight: IntersectionObserver;
  private readonly size: ResizeObserver;

  constructor(
    private readonly element: HTMLElement,
    private readonly onReady: (chart: Chart) => void,
  ) {
    this.sight = new IntersectionObserver((entries) => this.notice(entries), { rootMargin: NEAR });
    this.size = new ResizeObserver(() => this.chart?.resize());
    this.sight.observe(element);
    this.size.observe(element);
    easels.add(this);
  }

  show(option: Option): void {
    this.pending = option;
    if (this.isInSight && !this.isHeld) this.draw();
  }

  look(range: Range | null): void {
    this.range = range;
    this.hasMoved = true;
    if (this.isInSight && !this.isHeld) this.draw();
  }

  /** Right now, as wide as its place is now. */
  redraw(): void {
    this.draw();
    this.chart?.resize();
    this.chart?.getZr().refreshImmediately();
  }

  dispose(): void {
    this.sight.disconnect();
    this.size.disconnect();
    this.chart?.dispose();
    easels.delete(this);
  }

  private notice(entries: readonly IntersectionObserverEntry[]): void {
    this.isInSight = entries[entries.length - 1]?.isIntersecting ?? false;
    if (this.isInSight) this.draw();
  }

  private draw(): void {
    if (this.pending !== null) {
      this.chart ??= this.begin();
      this.chart.setOption(placed(this.pending, this.range), { replaceMerge: ["series"] });
    } else if (this.hasMoved) {
      const move = {
        type: "dataZoom",
        batch: CONTROLS.map((id) => ({ dataZoomId: id, ...place(this.range) })),
      };
      this.chart?.dispatchAction(move, { silent: true }); // much cheaper than a new option
    }
    this.pending = null;
    this.hasMoved = false;
  }

  private begin(): Chart {
    const chart = newChart(this.element);
    // A new option under a pressed button would tear the slider out of the hand that drags it.
    chart.getZr().on("mousedown", () => this.hold());
    this.onReady(chart);
    return chart;
  }

  private hold(): void {
    this.isHeld = true;
    this.chart?.setOption({ tooltip: { show: false } }); // it would be laid out anew at every move
    const release = (): void => {
      if (!this.isHeld) return;
      this.isHeld = false;
      this.chart?.setOption({ tooltip: { show: true } });
      if (this.isInSight) this.draw();
    };
    for (const end of ["pointerup", "pointercancel", "blur"]) {
      window.addEventListener(end, release, { once: true });
    }
  }
}

/** Where the controls of a zoom stand. */
function place(range: Range | null): object {
  return range === null ? { start: 0, end: 100 } : { startValue: range[0], endValue: range[1] };
}

/** A new drawing keeps what the reader looks at, also where there are more steps by now. */
function placed(option: Option, range: Range | null): Option {
  const controls = (option["dataZoom"] ?? []) as readonly object[];
  return { ...option, dataZoom: controls.map((control) => ({ ...control, ...place(range) })) };
}

const easels = new Set<Easel>();

/** Brings every chart to paper, also those that nobody has scrolled to, and back to the screen. */
export function redrawAll(): void {
  for (const easel of easels) easel.redraw();
  for (const redraw of others) redraw();
}

const others = new Set<() => void>();

/** For pictures that the charting library does not draw; returns how to stop it. */
export function onRedraw(redraw: () => void): () => void {
  others.add(redraw);
  return () => void others.delete(redraw);
}

export function Canvas({ option, height, range, onReady }: Properties) {
  const place = useRef<HTMLDivElement>(null);
  const easel = useRef<Easel | null>(null);
  useLayoutEffect(() => {
    const made = new Easel(place.current!, (chart) => onReady?.(chart));
    easel.current = made;
    return () => made.dispose();
  }, []);
  useLayoutEffect(() => easel.current?.look(range), [range]);
  useLayoutEffect(() => easel.current?.show(option), [option]);
  return <div ref={place} class="canvas" style={{ height: `${height}px` }} aria-hidden="true" />;
}
