/** A picture that is painted by hand: thousands of lines or dots, and a layer over them. */

import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { onRedraw } from "./canvas";

export interface Size {
  width: number;
  height: number;
}

export type Paint = (context: CanvasRenderingContext2D, size: Size) => void;

interface Properties {
  height: number;
  /** Less than this, and the picture is scrolled sideways. */
  minWidth?: number;
  paint: Paint;
  /** Over it, and painted much more often: what is pointed at. */
  paintOver: Paint | null;
  onSize?: (size: Size) => void;
  onMove?: (x: number, y: number, event: PointerEvent) => void;
  onDown?: (x: number, y: number, event: PointerEvent) => void;
  onUp?: (x: number, y: number, event: PointerEvent) => void;
  onLeave?: () => void;
  cursor?: string;
  children?: ComponentChildren;
}

export function Painting(properties: Properties) {
  const { height, minWidth = 0, paint, paintOver, onSize, cursor, children } = properties;
  const frame = useRef<HTMLDivElement>(null);
  const below = useRef<HTMLCanvasElement>(null);
  const above = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const measure = (): void => setWidth(Math.round(frame.current!.getBoundingClientRect().width));
    const observer = new ResizeObserver(measure);
    observer.observe(frame.current!);
    const forget = onRedraw(measure); // for paper, which waits for nobody
    measure();
    return () => {
      observer.disconnect();
      forget();
    };
  }, []);
  useLayoutEffect(() => onSize?.({ width, height }), [width, height]);
  useLayoutEffect(() => painted(below.current!, { width, height }, paint), [width, height, paint]);
  useLayoutEffect(
    () => painted(above.current!, { width, height }, paintOver),
    [width, height, paintOver],
  );
  const at =
    (told: ((x: number, y: number, event: PointerEvent) => void) | undefined) =>
    (event: PointerEvent): void => {
      const box = frame.current!.getBoundingClientRect();
      told?.(event.clientX - box.left, event.clientY - box.top, event);
    };
  return (
    <div class="scroll painting">
      <div
        ref={frame}
        class="painting-frame"
        style={{ height: `${height}px`, minWidth: `${minWidth}px`, cursor: cursor ?? "default" }}
        onPointerMove={at(properties.onMove)}
        onPointerDown={at(properties.onDown)}
        onPointerUp={at(properties.onUp)}
        onPointerLeave={(event) => {
          // A finger leaves with every tap: what it pointed at stays to be read.
          if (event.pointerType !== "touch") properties.onLeave?.();
        }}
      >
        <canvas ref={below} aria-hidden="true" />
        <canvas ref={above} aria-hidden="true" />
        {children}
      </div>
    </div>
  );
}

function painted(canvas: HTMLCanvasElement, size: Size, paint: Paint | null): void {
  const dense = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(size.width * dense));
  canvas.height = Math.max(1, Math.round(size.height * dense));
  const context = canvas.getContext("2d")!;
  context.scale(dense, dense);
  if (size.width > 0) paint?.(context, size);
}

interface TipProperties {
  x: number;
  y: number;
  width: number;
  title: string;
  rows: readonly (readonly [string, string])[];
}

/** What is pointed at, in words; on the other side of the pointer where there is no room. */
export function PaintingTip({ x, y, width, title, rows }: TipProperties) {
  const side = x > width / 2 ? { right: `${width - x + 12}px` } : { left: `${x + 12}px` };
  return (
    <div class="tip-frame floating" style={{ ...side, top: `${Math.max(0, y - 20)}px` }}>
      <div class="tip-title">{title}</div>
      {rows.map(([name, value]) => (
        <div key={name} class="tip-row">
          <span class="tip-name">{name}</span>
          <b>{value}</b>
        </div>
      ))}
    </div>
  );
}

/** Words that stay readable over lines. */
export function haloed(
  context: CanvasRenderingContext2D,
  text: string,
  x: number,
  y: number,
  ground: string,
  ink: string,
): void {
  context.strokeStyle = ground;
  context.lineWidth = 3;
  context.lineJoin = "round";
  context.strokeText(text, x, y);
  context.fillStyle = ink;
  context.fillText(text, x, y);
}
