-- Topics as views: spark-sql -f views.sql, with PYSPARK_PYTHON set to a Python that has Headrace.
CREATE OR REPLACE TEMPORARY VIEW orders USING headrace OPTIONS (
  kafka.bootstrap.servers '127.0.0.1:9092',
  subscribe 'orders',
  valueFormat 'json',
  schema 'id BIGINT, customer STRING, amount DOUBLE'
);

-- A view to write to names its columns. An INSERT is one transaction for each task.
CREATE OR REPLACE TEMPORARY VIEW totals (key STRING, value STRING) USING headrace OPTIONS (
  kafka.bootstrap.servers '127.0.0.1:9092',
  topic 'totals'
);

INSERT INTO totals
SELECT customer, to_json(named_struct('customer', customer, 'amount', sum(amount))) FROM orders
WHERE id IS NOT NULL GROUP BY customer;

SELECT customer, count(*) AS orders, sum(amount) AS amount FROM orders
WHERE id IS NOT NULL GROUP BY customer ORDER BY customer;
