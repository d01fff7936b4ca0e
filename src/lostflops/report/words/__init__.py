"""Values as people read them: amounts that add up, cells of tables, and text from outside made safe."""
