/** Short lines: what could not be shown, or what to do next. */

interface Properties {
  title: string;
  lines: readonly string[];
}

export function Notes({ title, lines }: Properties) {
  if (lines.length === 0) return null;
  return (
    <section class="card part notes" aria-label={title} data-part tabIndex={-1}>
      <header>
        <h2>{title}</h2>
      </header>
      <ul>
        {lines.map((line, index) => (
          <li key={index}>{line}</li>
        ))}
      </ul>
    </section>
  );
}
